//! From a row to a message: column mapping, subject, headers, payload.

mod encode;
mod instant;
mod json;
mod outside;
mod plan;
mod row;
mod spec;
mod template;

pub use encode::is_header_name;
pub use outside::{CommandMessage, ResumeMark, StoredLetter, TableRow, UnfitRow, id_column};
pub(crate) use plan::Plan;
pub use plan::{TableFault, check_columns, ids_may_collide};
pub use row::PoisonReason;
pub(crate) use row::{Rendered, Renderer, Row};
pub use spec::{OutboxSpec, Role, header_name_fault};
pub use template::{Part, Template, TemplateError};
