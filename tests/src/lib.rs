//! Shared parts of the tests against real servers.
