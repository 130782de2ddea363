//! Keys and tenants as the registry has them, and as messages of administration say them: for the server, and for whoever changes a data folder
//! that no server has open.

use cellwright_protocol::messages::admin::{Key, Scope, Tenant, TenantSettings};
use cellwright_registry as registry;

/// A key as it is listed.
#[must_use]
pub fn key(key: registry::Key) -> Key {
    Key {
        id: key.id.as_str().to_owned(),
        tenant: key.tenant.into(),
        scopes: key.scopes.iter().map(scope).collect(),
        label: key.label,
        created_ms: key.created_ms,
    }
}

const fn scope(scope: registry::Scope) -> Scope {
    match scope {
        registry::Scope::Infer => Scope::Infer,
        registry::Scope::Upload => Scope::Upload,
        registry::Scope::Admin => Scope::Admin,
    }
}

/// What a key is asked to allow.
#[must_use]
pub fn scopes(asked: &[Scope]) -> registry::Scopes {
    let scope = |scope: &Scope| match scope {
        Scope::Infer => registry::Scope::Infer,
        Scope::Upload => registry::Scope::Upload,
        Scope::Admin => registry::Scope::Admin,
    };
    asked.iter().map(scope).collect()
}

/// A tenant with all of its settings.
#[must_use]
pub fn tenant(tenant: registry::Tenant) -> Tenant {
    let settings = tenant.settings;
    let settings = TenantSettings {
        weight: Some(settings.weight),
        in_flight_max: Some(settings.in_flight_max),
        queued_max: Some(settings.queued_max),
        device_share: settings.device_share,
        models_max: Some(settings.models_max),
        versions_max: Some(settings.versions_max),
        bytes_max: Some(settings.bytes_max),
    };
    Tenant { name: tenant.name.into(), settings, created_ms: tenant.created_ms }
}

/// Settings, but for what is asked for.
#[must_use]
pub fn changed(settings: registry::TenantSettings, asked: &TenantSettings) -> registry::TenantSettings {
    registry::TenantSettings {
        weight: asked.weight.unwrap_or(settings.weight),
        in_flight_max: asked.in_flight_max.unwrap_or(settings.in_flight_max),
        queued_max: asked.queued_max.unwrap_or(settings.queued_max),
        device_share: asked.device_share_after(settings.device_share),
        models_max: asked.models_max.unwrap_or(settings.models_max),
        versions_max: asked.versions_max.unwrap_or(settings.versions_max),
        bytes_max: asked.bytes_max.unwrap_or(settings.bytes_max),
    }
}
