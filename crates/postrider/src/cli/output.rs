//! Results on stdout.

use std::io::{self, ErrorKind, Write};

/// Prints a result. A reader that has gone (`| head`) is no fault: it has what it wanted.
///
/// # Errors
/// When stdout cannot be written for another reason, like a full disk.
pub fn print(text: &str) -> io::Result<()> {
    print_to(&mut io::stdout().lock(), text)
}

fn print_to(stdout: &mut impl Write, text: &str) -> io::Result<()> {
    match stdout
        .write_all(text.as_bytes())
        .and_then(|()| stdout.flush())
    {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
        other => other,
    }
}

/// Prints to stderr. Nothing can be done when it is closed.
pub fn complain(text: &str) {
    let _closed = writeln!(io::stderr().lock(), "{}", text.trim_end());
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Failing(ErrorKind);

    impl Write for Failing {
        fn write(&mut self, _: &[u8]) -> io::Result<usize> {
            Err(self.0.into())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_gone_reader_is_no_fault() {
        assert!(print_to(&mut Failing(ErrorKind::BrokenPipe), "a").is_ok());
        assert!(print_to(&mut Failing(ErrorKind::StorageFull), "a").is_err());
        let mut text = Vec::new();
        print_to(&mut text, "a").unwrap();
        assert_eq!(text, b"a");
    }
}
