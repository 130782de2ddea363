//! Tenants, and what each may use.

use serde::{Deserialize, Serialize};

use crate::name::TenantName;

/// Someone who has models and keys of their own, and sees nobody else's.
#[derive(Clone, Debug, PartialEq)]
pub struct Tenant {
    /// What it is called.
    pub name: TenantName,
    /// What it may use.
    pub settings: TenantSettings,
    /// When it was made, in milliseconds since 1970.
    pub created_ms: u64,
}

/// What a tenant may use. In JSON every setting may be left out and then has its default; an unknown one is refused.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TenantSettings {
    /// Its share of contended device time, relative to other tenants' weights.
    pub weight: u32,
    /// Calls that may run at once.
    pub in_flight_max: u32,
    /// Calls beyond those that may wait to run; more are refused.
    pub queued_max: u32,
    /// Fraction of device time it may use at most, even if nobody else wants it: its calls wait when it has had that, a tenth of a second ahead at most.
    /// Processor time of its plugins counts as device time.
    pub device_share: Option<f64>,
    /// Models it may have.
    pub models_max: u32,
    /// Versions that each of its models may have.
    pub versions_max: u32,
    /// Bytes that its versions may take of the disk together; what several versions share counts once.
    pub bytes_max: u64,
}

impl Default for TenantSettings {
    fn default() -> Self {
        Self {
            weight: 1,
            in_flight_max: 4096,
            queued_max: 4096,
            device_share: None,
            models_max: 1000,
            versions_max: 1000,
            bytes_max: 256 << 30,
        }
    }
}

/// Why settings are refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SettingsFault {
    /// Not a weight that can be compared with others.
    #[error("`weight` must be from 1 to {}", TenantSettings::WEIGHT_MAX)]
    Weight,
    /// No fraction.
    #[error("`device_share` must be more than 0 and at most 1")]
    DeviceShare,
    /// The tenant could never send a request.
    #[error("`in_flight_max` must be at least 1")]
    InFlightMax,
    /// More than the database can count.
    #[error("`bytes_max` must be less than 2^63")]
    BytesMax,
}

impl TenantSettings {
    /// The largest weight.
    pub const WEIGHT_MAX: u32 = 1_000_000;

    /// Whether these settings can be kept.
    ///
    /// # Errors
    /// The first that cannot.
    pub fn check(&self) -> Result<(), SettingsFault> {
        if !(1..=Self::WEIGHT_MAX).contains(&self.weight) {
            return Err(SettingsFault::Weight);
        }
        if self.device_share.is_some_and(|share| !(share > 0.0 && share <= 1.0)) {
            return Err(SettingsFault::DeviceShare);
        }
        if self.in_flight_max == 0 {
            return Err(SettingsFault::InFlightMax);
        }
        if i64::try_from(self.bytes_max).is_err() {
            return Err(SettingsFault::BytesMax);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_that_make_no_sense_are_refused() {
        let good = TenantSettings::default();
        assert_eq!(good.check(), Ok(()));
        assert_eq!(TenantSettings { device_share: Some(1.0), ..good.clone() }.check(), Ok(()));
        let share = |share| TenantSettings { device_share: Some(share), ..good.clone() };
        for bad in [share(0.0), share(-0.5), share(1.5), share(f64::NAN), share(f64::INFINITY)] {
            assert_eq!(bad.check(), Err(SettingsFault::DeviceShare), "{bad:?}");
        }
        assert_eq!(TenantSettings { weight: 0, ..good.clone() }.check(), Err(SettingsFault::Weight));
        assert_eq!(TenantSettings { in_flight_max: 0, ..good.clone() }.check(), Err(SettingsFault::InFlightMax));
        assert_eq!(TenantSettings { bytes_max: u64::MAX, ..good }.check(), Err(SettingsFault::BytesMax));
    }

    #[test]
    fn settings_left_out_have_their_defaults_and_unknown_ones_are_refused() {
        let settings: TenantSettings = serde_json::from_str(r#"{"weight": 3}"#).unwrap();
        assert_eq!(settings, TenantSettings { weight: 3, ..TenantSettings::default() });
        assert!(serde_json::from_str::<TenantSettings>(r#"{"wieght": 3}"#).is_err());
    }
}
