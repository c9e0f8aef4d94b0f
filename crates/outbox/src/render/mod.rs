//! From a row to a message: column mapping, subject, headers, payload.

mod encode;
mod instant;
mod json;
mod plan;
mod row;
mod spec;
mod template;

pub use encode::is_header_name;
pub(crate) use plan::Plan;
pub use plan::{TableFault, check_columns};
pub use row::PoisonReason;
pub(crate) use row::{Rendered, Renderer, Row};
pub use spec::{OutboxSpec, Role, header_name_fault};
pub use template::{Part, Template, TemplateError};
