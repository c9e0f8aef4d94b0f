//! The kinds of messages and the byte each begins with.

use std::fmt;

macro_rules! message_kinds {
    ($($kind:ident $tag:literal $name:literal,)+) => {
        /// The kind of a message, told by its first byte
        /// (PostgreSQL manual, "Logical Replication Message Formats").
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum MessageKind {
            $(#[doc = concat!("`", $name, "`")] $kind,)+
        }

        impl MessageKind {
            /// Every kind there is, in the manual's order.
            pub const ALL: &'static [Self] = &[$(Self::$kind),+];

            /// The kind that begins with this byte.
            #[must_use]
            pub const fn from_tag(tag: u8) -> Option<Self> {
                match tag {
                    $($tag => Some(Self::$kind),)+
                    _ => None,
                }
            }

            /// The byte this kind begins with.
            #[must_use]
            pub const fn tag(self) -> u8 {
                match self {
                    $(Self::$kind => $tag,)+
                }
            }

            /// The manual's name of this kind.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$kind => $name,)+
                }
            }
        }
    };
}

message_kinds! {
    Begin b'B' "Begin",
    Message b'M' "Message",
    Commit b'C' "Commit",
    Origin b'O' "Origin",
    Relation b'R' "Relation",
    Type b'Y' "Type",
    Insert b'I' "Insert",
    Update b'U' "Update",
    Delete b'D' "Delete",
    Truncate b'T' "Truncate",
    StreamStart b'S' "Stream Start",
    StreamStop b'E' "Stream Stop",
    StreamCommit b'c' "Stream Commit",
    StreamAbort b'A' "Stream Abort",
    BeginPrepare b'b' "Begin Prepare",
    Prepare b'P' "Prepare",
    CommitPrepared b'K' "Commit Prepared",
    RollbackPrepared b'r' "Rollback Prepared",
    StreamPrepare b'p' "Stream Prepare",
}

impl fmt::Display for MessageKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ('{}')", self.name(), char::from(self.tag()))
    }
}
