//! Values with a unit: sizes and durations.

use std::time::Duration;

use crate::config::fault::{Wrong, quote};

/// Size units, by lower-case name, with their bytes. `MB` is decimal, `MiB` binary, as everywhere
/// outside PostgreSQL's own settings.
const SIZE_UNITS: [(&str, u64); 7] = [
    ("b", 1),
    ("kb", 1_000),
    ("mb", 1_000_000),
    ("gb", 1_000_000_000),
    ("kib", 1 << 10),
    ("mib", 1 << 20),
    ("gib", 1 << 30),
];

/// Duration units with their milliseconds.
const DURATION_UNITS: [(&str, u64); 5] = [
    ("ms", 1),
    ("s", 1_000),
    ("m", 60_000),
    ("h", 3_600_000),
    ("d", 86_400_000),
];

const SIZE_HELP: &str = "write a whole number with a unit, like 16MiB, 512KiB, 1MB, or plain bytes";
const DURATION_HELP: &str = "write a whole number with a unit, like 250ms, 30s, 5m, 12h or 7d";

/// Smallest and largest allowed value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// Smallest.
    pub min: u64,
    /// Largest.
    pub max: u64,
}

/// Bytes of a size like `16MiB`, `1 MB` or `4096`.
///
/// # Errors
/// For anything else, and outside the bounds.
pub fn parse_size(text: &str, bounds: Bounds) -> Result<u64, Wrong> {
    let (number, unit) = split(text, "size", SIZE_HELP)?;
    let factor = if unit.is_empty() {
        1
    } else {
        let lower = unit.to_ascii_lowercase();
        let known = SIZE_UNITS.iter().find(|(name, _)| *name == lower);
        known.map(|(_, bytes)| *bytes).ok_or_else(|| {
            let problem = format!("{} has the unknown unit {}", quote(text), quote(unit));
            Wrong::new(
                problem,
                "units of size: B, kB, MB, GB, KiB, MiB, GiB; example: 16MiB",
            )
        })?
    };
    let size_bytes = multiply(text, number, factor, "size")?;
    if size_bytes < bounds.min {
        let problem = format!("{} is too small", quote(text));
        return Err(Wrong::new(problem, size_range(bounds)));
    }
    if size_bytes > bounds.max {
        let problem = format!("{} is too large", quote(text));
        return Err(Wrong::new(problem, size_range(bounds)));
    }
    Ok(size_bytes)
}

/// A duration like `250ms`, `30s`, `5m`, `7d` or `0s`. Bounds are in milliseconds.
///
/// # Errors
/// For anything else, and outside the bounds.
pub fn parse_duration(text: &str, bounds_ms: Bounds) -> Result<Duration, Wrong> {
    let (number, unit) = split(text, "duration", DURATION_HELP)?;
    if unit.is_empty() {
        let problem = format!("{} has no unit", quote(text));
        let help = format!("did you mean {number}s? Units: ms, s, m, h, d");
        return Err(Wrong::new(problem, help));
    }
    let known = DURATION_UNITS.iter().find(|(name, _)| *name == unit);
    let factor = known.map(|(_, ms)| *ms).ok_or_else(|| {
        let problem = format!("{} has the unknown unit {}", quote(text), quote(unit));
        Wrong::new(problem, "units of time: ms, s, m, h, d; example: 30s")
    })?;
    let time_ms = multiply(text, number, factor, "duration")?;
    if time_ms < bounds_ms.min {
        let problem = format!("{} is too short", quote(text));
        return Err(Wrong::new(problem, duration_range(bounds_ms)));
    }
    if time_ms > bounds_ms.max {
        let problem = format!("{} is too long", quote(text));
        return Err(Wrong::new(problem, duration_range(bounds_ms)));
    }
    Ok(Duration::from_millis(time_ms))
}

/// A whole number within bounds.
///
/// # Errors
/// For anything else, and outside the bounds.
pub fn parse_integer(text: &str, bounds: Bounds) -> Result<u64, Wrong> {
    let help = format!("write a whole number from {} to {}", bounds.min, bounds.max);
    let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    if !digits {
        return Err(Wrong::new(
            format!("{} is not a whole number", quote(text)),
            help,
        ));
    }
    match text.parse::<u64>() {
        Ok(number) if number >= bounds.min && number <= bounds.max => Ok(number),
        _ => Err(Wrong::new(format!("{text:.20} is out of range"), help)),
    }
}

/// The allowed sizes in words.
fn size_range(bounds: Bounds) -> String {
    format!(
        "allowed: {} to {}",
        format_size(bounds.min),
        format_size(bounds.max)
    )
}

/// The allowed durations in words.
fn duration_range(bounds_ms: Bounds) -> String {
    format!(
        "allowed: {} to {}",
        format_ms(bounds_ms.min),
        format_ms(bounds_ms.max)
    )
}

/// A size in its largest unit that divides it.
pub fn format_size(size_bytes: u64) -> String {
    let units = [("GiB", 1u64 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)];
    let unit = units
        .iter()
        .find(|(_, bytes)| size_bytes >= *bytes && size_bytes.is_multiple_of(*bytes));
    match unit {
        Some((name, bytes)) => format!("{}{name}", size_bytes / bytes),
        None => format!("{size_bytes}B"),
    }
}

/// Milliseconds in the largest unit that divides them.
fn format_ms(time_ms: u64) -> String {
    if time_ms == 0 {
        return "0s".to_owned();
    }
    let unit = DURATION_UNITS
        .iter()
        .rev()
        .find(|(_, ms)| time_ms.is_multiple_of(*ms));
    let (name, ms) = unit.copied().unwrap_or(("ms", 1));
    format!("{}{name}", time_ms / ms)
}

/// Splits a value into its digits and its unit.
fn split<'a>(text: &'a str, what: &str, help: &str) -> Result<(&'a str, &'a str), Wrong> {
    let trimmed = text.trim();
    if trimmed.starts_with('-') {
        let problem = format!("{} is negative, and a {what} cannot be", quote(text));
        return Err(Wrong::new(problem, help));
    }
    let end = trimmed
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(trimmed.len());
    let (number, unit) = trimmed.split_at(end);
    let unit = unit.trim_start();
    let whole = !number.is_empty() && unit.chars().all(|c| c.is_ascii_alphabetic());
    if !whole {
        return Err(Wrong::new(format!("{} is not a {what}", quote(text)), help));
    }
    Ok((number, unit))
}

/// Digits times unit, without overflow.
fn multiply(text: &str, number: &str, factor: u64, what: &str) -> Result<u64, Wrong> {
    let product = number
        .parse::<u64>()
        .ok()
        .and_then(|number| number.checked_mul(factor));
    product.ok_or_else(|| {
        Wrong::new(
            format!("{} is too large for a {what}", quote(text)),
            "write a smaller one",
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const ANY: Bounds = Bounds {
        min: 0,
        max: u64::MAX,
    };

    fn size(text: &str) -> Result<u64, String> {
        parse_size(text, ANY).map_err(|wrong| wrong.problem)
    }

    fn ms(text: &str) -> Result<u128, String> {
        parse_duration(text, ANY)
            .map(|d| d.as_millis())
            .map_err(|wrong| wrong.problem)
    }

    #[test]
    fn sizes() {
        assert_eq!(size("16MiB"), Ok(16 << 20));
        assert_eq!(size("512KiB"), Ok(512 << 10));
        assert_eq!(size("1MB"), Ok(1_000_000));
        assert_eq!(size("1 mb"), Ok(1_000_000));
        assert_eq!(size("4096"), Ok(4096));
        assert_eq!(size("0"), Ok(0));
    }

    #[test]
    fn bad_sizes_say_why() {
        assert!(size("-1").unwrap_err().contains("negative"));
        for text in [
            "NaN", "inf", "", " ", "MiB", "1.5GiB", "1e9", "0x10", "१६", "1_000",
        ] {
            assert!(size(text).unwrap_err().contains("is not a size"), "{text}");
        }
        assert!(size("16Mo").unwrap_err().contains("unknown unit"));
        assert!(size("16M").unwrap_err().contains("unknown unit"));
        assert!(size("99999999999GiB").unwrap_err().contains("too large"));
        assert!(size(&"9".repeat(400)).unwrap_err().contains("too large"));
    }

    #[test]
    fn bounds_are_named() {
        let bounds = Bounds {
            min: 64 << 10,
            max: 4 << 30,
        };
        let wrong = parse_size("1", bounds).unwrap_err();
        assert_eq!(wrong.problem, "\"1\" is too small");
        assert_eq!(wrong.help, "allowed: 64KiB to 4GiB");
        assert_eq!(
            parse_size("5GiB", bounds).unwrap_err().help,
            "allowed: 64KiB to 4GiB"
        );
        let wrong = parse_duration(
            "8d",
            Bounds {
                min: 0,
                max: 604_800_000,
            },
        )
        .unwrap_err();
        assert_eq!(wrong.help, "allowed: 0s to 7d");
        assert!(parse_duration("0s", Bounds { min: 1, max: 2 }).is_err());
    }

    #[test]
    fn durations() {
        assert_eq!(ms("250ms"), Ok(250));
        assert_eq!(ms("30s"), Ok(30_000));
        assert_eq!(ms("5m"), Ok(300_000));
        assert_eq!(ms("7d"), Ok(604_800_000));
        assert_eq!(ms("0s"), Ok(0));
    }

    #[test]
    fn bad_durations_say_why() {
        assert!(ms("-5s").unwrap_err().contains("negative"));
        assert!(ms("30").unwrap_err().contains("no unit"));
        assert!(ms("NaN").unwrap_err().contains("is not a duration"));
        assert!(ms("1.5h").unwrap_err().contains("is not a duration"));
        assert!(ms("5w").unwrap_err().contains("unknown unit"));
        assert!(ms("99999999999999999d").unwrap_err().contains("too large"));
        assert_eq!(
            parse_duration("30", ANY).unwrap_err().help,
            "did you mean 30s? Units: ms, s, m, h, d"
        );
    }

    #[test]
    fn integers() {
        let bounds = Bounds { min: 1, max: 5 };
        assert_eq!(parse_integer("3", bounds), Ok(3));
        for text in ["0", "6", "-1", "", "3.0", "NaN", "99999999999999999999999"] {
            assert_eq!(
                parse_integer(text, bounds).unwrap_err().help,
                "write a whole number from 1 to 5"
            );
        }
    }
}
