//! Rounds of the targets without a fuzzer, and seeds for one with it. `cargo xtask fuzz` calls it.
//!
//! ```text
//! postrider-fuzz-targets list                          the names and longest inputs
//! postrider-fuzz-targets seeds TARGET FOLDER           writes the seeds as a corpus
//! postrider-fuzz-targets short TARGET SECONDS FOLDER   tries; writes a finding into FOLDER
//! postrider-fuzz-targets try TARGET FILE               tries one input
//! ```

use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use postrider_fuzz_targets::short::{Finding, Until, round};
use postrider_fuzz_targets::{TARGETS, Target, named, seeds};

fn main() -> ExitCode {
    let args: Vec<_> = std::env::args().skip(1).collect();
    let args: Vec<_> = args.iter().map(String::as_str).collect();
    match act(&args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(text) => {
            eprintln!("{text}");
            ExitCode::FAILURE
        }
    }
}

fn act(args: &[&str]) -> Result<(), String> {
    let target = |name: &str| named(name).ok_or_else(|| format!("no target is named {name}"));
    match args {
        ["list"] => {
            for target in TARGETS {
                println!("{} {}", target.name, target.max_len_bytes);
            }
            Ok(())
        }
        ["seeds", name, folder] => {
            let count = seeds::write(target(name)?.name, Path::new(folder));
            let count = count.map_err(|error| format!("{folder}: {error}"))?;
            println!("{count} seeds in {folder}");
            Ok(())
        }
        ["short", name, seconds, folder] => {
            let seconds = seconds.parse().map_err(|_| "SECONDS is a number")?;
            short(
                target(name)?,
                Duration::from_secs(seconds),
                Path::new(folder),
            )
        }
        ["try", name, file] => {
            let input = std::fs::read(file).map_err(|error| format!("{file}: {error}"))?;
            (target(name)?.run)(&input);
            Ok(())
        }
        _ => {
            Err("list | seeds TARGET FOLDER | short TARGET SECONDS FOLDER | try TARGET FILE".into())
        }
    }
}

fn short(target: Target, time: Duration, folder: &Path) -> Result<(), String> {
    let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH);
    let seed = since_1970.map_or(1, |time| time.as_secs());
    let name = target.name;
    match round(target, seed, Until::Time(time)) {
        Ok(tried) => {
            println!("{name}: {tried} inputs from seed {seed}, no finding");
            Ok(())
        }
        Err(Finding { input, panic }) => {
            let path = folder.join(format!("{name}-{seed}"));
            let written = std::fs::create_dir_all(folder)
                .and_then(|()| std::fs::write(&path, &input))
                .map_or_else(|error| error.to_string(), |()| path.display().to_string());
            Err(format!(
                "{name}: {panic}\nthe input: {}\nin {written}",
                input.escape_ascii()
            ))
        }
    }
}
