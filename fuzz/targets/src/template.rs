//! Templates and the rules for them: what is taken can be rendered, and its pattern is one that
//! NATS would take.

use jetstream::covers;
use outbox::{Part, Template};
use postrider::config::template::{check_key, check_subject};

use crate::input::Input;

pub(crate) fn run(data: &[u8]) {
    let mut input = Input(data);
    let text = input.text();
    let subject = check_subject(&text);
    let key = check_key(&text, "{aggregate_id}");
    for wrong in subject.iter().chain(&key).map(|_| ()).map(|()| &text) {
        assert!(!wrong.is_empty());
    }
    let template = match Template::parse(&text) {
        Ok(template) => template,
        Err(error) => {
            assert!(!error.to_string().is_empty());
            assert!(subject.is_err() && key.is_err(), "{text:?} is no template");
            return;
        }
    };
    assert!(!template.parts().is_empty());
    let mut literals = text.as_str();
    for part in template.parts() {
        match part {
            Part::Literal(literal) => {
                assert!(!literal.is_empty() && !literal.contains(['{', '}']));
                let at = literals.find(literal.as_str()).unwrap();
                literals = &literals[at + literal.len()..];
            }
            Part::Place(name) => assert!(!name.is_empty() && name.trim() == name),
        }
    }
    assert!(template.places().count() <= template.parts().len());
    if subject.is_ok() {
        let pattern = template.subject_pattern();
        assert!(covers(&pattern, &pattern), "{pattern:?}");
        for token in pattern.split('.') {
            assert!(!token.is_empty(), "{text:?} gives {pattern:?}");
            let hostile = |byte: u8| !byte.is_ascii_graphic();
            assert!(!token.bytes().any(hostile), "{text:?} gives {pattern:?}");
        }
    }
}
