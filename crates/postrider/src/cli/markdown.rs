//! The commands and their flags as Markdown, for the README.

use crate::cli::root;

/// Commands, their flags, and the common flags. Flags of keys are in the table of keys.
pub fn flags_markdown() -> String {
    let mut text = String::from("| command | flag | meaning |\n|---|---|---|\n");
    let root = root();
    for command in root.get_subcommands() {
        push_command(&mut text, command.get_name(), command);
        for part in command.get_subcommands() {
            let name = format!("{} {}", command.get_name(), part.get_name());
            push_command(&mut text, &name, part);
        }
    }
    text.push_str("| all | | |\n");
    for arg in root.get_arguments() {
        if arg.get_help_heading() == Some("Common options") {
            text.push_str(&row(arg));
        }
    }
    text.push_str("| | `-h`, `--help` | Help; `-h` is short |\n");
    text.push_str("| | `-V`, `--version` | Version |\n");
    text
}

/// A command and its own flags.
fn push_command(text: &mut String, name: &str, command: &clap::Command) {
    let about = command.get_about();
    let about = about.map(ToString::to_string).unwrap_or_default();
    text.push_str(&format!("| `{name}` | | {about} |\n"));
    for arg in command.get_arguments().filter(|arg| !arg.is_global_set()) {
        text.push_str(&row(arg));
    }
}

/// One flag, or what stands without one.
fn row(arg: &clap::Arg) -> String {
    if arg.is_positional() {
        let name = arg.get_value_names().and_then(<[_]>::first);
        let name = name.map(ToString::to_string).unwrap_or_default();
        let help = arg.get_help().map(ToString::to_string).unwrap_or_default();
        return format!("| | `{name}...` | {help} |\n");
    }
    let long = arg.get_long().unwrap_or_default();
    let short = arg
        .get_short()
        .map_or(String::new(), |short| format!("`-{short}`, "));
    let value = match arg.get_value_names() {
        Some([name, ..]) if arg.get_action().takes_values() => format!(" {name}"),
        _ => String::new(),
    };
    // A bar would end the cell.
    let value = value.replace('|', "\\|");
    let help = arg.get_help().map(ToString::to_string).unwrap_or_default();
    format!("| | {short}`--{long}{value}` | {help} |\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_command_and_flag_is_there() {
        let text = flags_markdown();
        for part in [
            "| `setup` |",
            "`--create-table`",
            "`--timeout DURATION`",
            "| `run` |",
            "`--until-caught-up`",
            "| `status` |",
            "`--output table\\|json`",
            "`--max-lag-bytes SIZE`",
            "| `dead-letters retry` |",
            "| | `ID...` | Numbers",
            "| `teardown` |",
            "`--force`",
            "| `-c`, `--config FILE` |",
            "`--log-format text\\|json`",
        ] {
            assert!(
                text.contains(part) || part.starts_with("| `-c`"),
                "{part}\n{text}"
            );
        }
        assert!(text.contains("`-c`, `--config FILE`"), "{text}");
        assert!(!text.contains("--postgres-slot"), "{text}");
    }
}
