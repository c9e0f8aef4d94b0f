//! This room against real servers. Versions: see `testbed::versions_under_test`.

#[cfg(test)]
mod connect;
#[cfg(test)]
mod control;
#[cfg(test)]
mod session;
#[cfg(test)]
mod setup;
#[cfg(test)]
mod support;
#[cfg(test)]
mod tls;
