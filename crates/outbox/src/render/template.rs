//! Templates such as `outbox.{aggregate_type}.{type}`.

use super::spec::Role;

/// A text with places for column values.
///
/// A place names a role (`{aggregate_type}`, found as the roles are) or a column (`{tenant_id}`),
/// or the table itself (`{table}`). Braces stand for nothing else.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Template {
    parts: Vec<Part>,
}

/// One part of a [`Template`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Part {
    /// Text that stands as it is.
    Literal(String),
    /// The name between two braces.
    Place(String),
}

/// The text is not a template.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TemplateError {
    /// A `{` without its `}`, or the other way round.
    #[error("a brace without its partner at byte {offset} (write places as {{column}})")]
    Unbalanced {
        /// Where in the text, in bytes.
        offset: usize,
    },
    /// `{}`.
    #[error("an empty place {{}} at byte {offset} (write the column's name between the braces)")]
    EmptyPlace {
        /// Where in the text, in bytes.
        offset: usize,
    },
    /// Nothing at all.
    #[error("the template is empty")]
    Empty,
}

impl Template {
    /// Reads a template.
    ///
    /// # Errors
    ///
    /// If braces do not pair or stand around nothing, or if the text is empty.
    pub fn parse(text: &str) -> Result<Self, TemplateError> {
        let mut parts = Vec::new();
        let mut offset = 0;
        let mut rest = text;
        while !rest.is_empty() {
            let Some(brace) = rest.find(['{', '}']) else {
                parts.push(Part::Literal(rest.to_owned()));
                break;
            };
            let (literal, from_brace) = rest.split_at(brace);
            if !literal.is_empty() {
                parts.push(Part::Literal(literal.to_owned()));
            }
            offset += brace;
            let place = from_brace
                .strip_prefix('{')
                .and_then(|inside| inside.split_once('}'))
                .filter(|(name, _)| !name.contains('{'));
            let Some((name, after)) = place else {
                return Err(TemplateError::Unbalanced { offset });
            };
            if name.trim().is_empty() {
                return Err(TemplateError::EmptyPlace { offset });
            }
            parts.push(Part::Place(name.trim().to_owned()));
            offset += name.len() + 2;
            rest = after;
        }
        if parts.is_empty() {
            Err(TemplateError::Empty)
        } else {
            Ok(Self { parts })
        }
    }

    /// The parts in order.
    #[must_use]
    pub fn parts(&self) -> &[Part] {
        &self.parts
    }

    /// The subjects that the template can make, as a NATS pattern: `*` for a token with a value in
    /// it, `>` from a topic on, whose dots stay.
    #[must_use]
    pub fn subject_pattern(&self) -> String {
        let mut tokens = vec![String::new()];
        for part in &self.parts {
            match part {
                Part::Literal(text) => {
                    let mut pieces = text.split('.');
                    let first = pieces.next().unwrap_or_default();
                    if let Some(last) = tokens.last_mut().filter(|last| *last != "*") {
                        last.push_str(first);
                    }
                    tokens.extend(pieces.map(str::to_owned));
                }
                Part::Place(name) => {
                    let topic = name == Role::Topic.name();
                    if let Some(last) = tokens.last_mut() {
                        *last = if topic { ">" } else { "*" }.to_owned();
                    }
                    if name == "table" {
                        // Schema and table are two tokens.
                        tokens.push("*".to_owned());
                    }
                    if topic {
                        break;
                    }
                }
            }
        }
        tokens.join(".")
    }

    /// The names of the places, in order, with repetitions.
    pub fn places(&self) -> impl Iterator<Item = &str> {
        self.parts.iter().filter_map(|part| match part {
            Part::Place(name) => Some(name.as_str()),
            Part::Literal(_) => None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_and_literals_alternate() {
        let template = Template::parse("outbox.{aggregate_type}.{ type }x").unwrap();
        assert_eq!(
            template.parts(),
            [
                Part::Literal("outbox.".into()),
                Part::Place("aggregate_type".into()),
                Part::Literal(".".into()),
                Part::Place("type".into()),
                Part::Literal("x".into()),
            ]
        );
        assert_eq!(
            template.places().collect::<Vec<_>>(),
            ["aggregate_type", "type"]
        );
        assert_eq!(Template::parse("fixed").unwrap().places().count(), 0);
    }

    #[test]
    fn patterns_cover_what_the_template_makes() {
        for (text, pattern) in [
            ("outbox.{aggregate_type}.{type}", "outbox.*.*"),
            ("outbox.{topic}", "outbox.>"),
            ("outbox.{topic}.late", "outbox.>"),
            ("a-{type}-b.c", "*.c"),
            ("fixed.subject", "fixed.subject"),
            ("{type}", "*"),
            ("db.{table}.{type}", "db.*.*.*"),
        ] {
            assert_eq!(
                Template::parse(text).unwrap().subject_pattern(),
                pattern,
                "{text}"
            );
        }
    }

    #[test]
    fn faults_name_their_place() {
        for (text, wanted) in [
            ("", TemplateError::Empty),
            ("a.{b", TemplateError::Unbalanced { offset: 2 }),
            ("a.b}", TemplateError::Unbalanced { offset: 3 }),
            ("{a}{b{c}}", TemplateError::Unbalanced { offset: 3 }),
            ("{a}.{}", TemplateError::EmptyPlace { offset: 4 }),
            ("{ }", TemplateError::EmptyPlace { offset: 0 }),
        ] {
            assert_eq!(Template::parse(text), Err(wanted), "{text:?}");
        }
    }
}
