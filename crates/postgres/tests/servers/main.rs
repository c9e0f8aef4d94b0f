//! This room against real servers. Versions: see `testbed::versions_under_test`.

mod connect;
mod control;
mod session;
mod setup;
mod support;
mod tls;
