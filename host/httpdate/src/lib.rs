//! Dates in heads of HTTP messages (RFC 9110, section 5.6.7), as hyper asks for them.
//!
//! It stands in for the crate of this name, which panics where the clock is outside the years 1970 to 9999: hyper asks it for the date on
//! every connection. Here such a clock reads as the nearest moment that has a date.

use std::fmt;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The last second of the year 9999.
const LAST: u64 = 253_402_300_799;
const DAY_SECONDS: u64 = 86_400;
/// From the first of March of the year 0, where leap days are last, to 1970.
const DAYS_TO_1970: u64 = 719_468;
const DAYS_OF_400_YEARS: u64 = 146_097;
const MONTHS: [&str; 12] = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
/// 1970 began on the first of them.
const WEEKDAYS: [&str; 7] = ["Thu", "Fri", "Sat", "Sun", "Mon", "Tue", "Wed"];

/// A moment of the years 1970 to 9999, to the second.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HttpDate(u64);

impl From<SystemTime> for HttpDate {
    fn from(time: SystemTime) -> Self {
        Self(time.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs().min(LAST))
    }
}

impl fmt::Display for HttpDate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (days, second) = (self.0 / DAY_SECONDS, self.0 % DAY_SECONDS);
        // Howard Hinnant's `civil_from_days`.
        let since = days + DAYS_TO_1970;
        let (era, day) = (since / DAYS_OF_400_YEARS, since % DAYS_OF_400_YEARS);
        let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
        let day = day - (365 * year + year / 4 - year / 100);
        let month = (5 * day + 2) / 153;
        let (day, month) = (day - (153 * month + 2) / 5 + 1, (month + 2) % 12);
        let year = era * 400 + year + u64::from(month < 2);
        let (weekday, month) = (WEEKDAYS[(days % 7) as usize], MONTHS[month as usize]);
        let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
        write!(f, "{weekday}, {day:02} {month} {year:04} {hour:02}:{minute:02}:{second:02} GMT")
    }
}

/// A text that is no date.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Error;

/// Reads a date in the form in which dates are written.
///
/// # Errors
/// It has another form.
pub fn parse_http_date(text: &str) -> Result<SystemTime, Error> {
    let fields: Vec<&str> = text.split([' ', ':']).collect();
    let [_, day, month, year, hour, minute, second, "GMT"] = fields.as_slice() else { return Err(Error) };
    let number = |text: &str| text.parse::<u16>().map(u64::from).map_err(|_| Error);
    let month = MONTHS.iter().position(|name| name == month).ok_or(Error)? as u64;
    // Months count from March.
    let (year, month) = (number(year)?.checked_sub(u64::from(month < 2)).ok_or(Error)?, (month + 10) % 12);
    let days = 365 * year + year / 4 - year / 100 + year / 400 + (153 * month + 2) / 5 + number(day)?;
    let days = days.checked_sub(DAYS_TO_1970 + 1).ok_or(Error)?;
    let date = HttpDate(days * DAY_SECONDS + number(hour)? * 3600 + number(minute)? * 60 + number(second)?);
    // What it is written as says whether there is such a day and such a time.
    if date.0 <= LAST && date.to_string() == text { Ok(UNIX_EPOCH + Duration::from_secs(date.0)) } else { Err(Error) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(seconds: i64) -> String {
        let distance = Duration::from_secs(seconds.unsigned_abs());
        HttpDate::from(if seconds < 0 { UNIX_EPOCH - distance } else { UNIX_EPOCH + distance }).to_string()
    }

    #[test]
    fn dates_are_those_of_the_calendar() {
        for (seconds, date) in [
            (0, "Thu, 01 Jan 1970 00:00:00 GMT"),
            (784_111_777, "Sun, 06 Nov 1994 08:49:37 GMT"),
            (951_782_399, "Mon, 28 Feb 2000 23:59:59 GMT"),
            (951_782_400, "Tue, 29 Feb 2000 00:00:00 GMT"),
            (4_107_542_400, "Mon, 01 Mar 2100 00:00:00 GMT"),
            (253_402_300_799, "Fri, 31 Dec 9999 23:59:59 GMT"),
        ] {
            assert_eq!(shown(seconds), date);
            assert_eq!(parse_http_date(date), Ok(UNIX_EPOCH + Duration::from_secs(seconds.unsigned_abs())));
        }
        for seconds in (0..253_402_300_799).step_by(7_777_777) {
            assert_eq!(parse_http_date(&shown(seconds)), Ok(UNIX_EPOCH + Duration::from_secs(seconds.unsigned_abs())));
        }
    }

    #[test]
    fn a_clock_outside_the_calendar_reads_as_its_ends() {
        assert_eq!((shown(-1), shown(-3_000_000_000)), (shown(0), shown(0)));
        assert_eq!((shown(253_402_300_800), shown(i64::MAX)), (shown(253_402_300_799), shown(253_402_300_799)));
    }

    #[test]
    fn what_is_no_date_is_refused() {
        for text in ["", "120", "Sun, 31 Feb 1994 08:49:37 GMT", "Mon, 06 Nov 1994 08:49:37 GMT", "Thu, 01 Jan 0000 00:00:00 GMT"] {
            assert_eq!(parse_http_date(text), Err(Error), "{text}");
        }
    }
}
