//! Waiting for a condition, always with a deadline.

use std::time::{Duration, Instant};

use anyhow::{Result, bail};

/// How often a condition is looked at: often enough not to slow a test down, seldom enough not to
/// load the server that it asks.
const POLL_INTERVAL: Duration = Duration::from_millis(10);

/// What a probe of [`wait_until`] found.
#[derive(Debug)]
pub enum Progress<T> {
    /// The condition holds; the wait ends with this value.
    Done(T),
    /// Not yet; the text says how far it is and appears in the error when time runs out.
    NotYet(String),
}

impl Progress<()> {
    /// [`Progress::Done`] when `holds`, else [`Progress::NotYet`] with what `state` says.
    pub fn when(holds: bool, state: impl FnOnce() -> String) -> Self {
        if holds {
            Self::Done(())
        } else {
            Self::NotYet(state())
        }
    }
}

/// Polls `probe` every few milliseconds until it is done, and gives back its value.
///
/// An error of the probe is not the end, for a server that is being restarted refuses
/// connections: it counts as "not yet" and is reported when time runs out. A probe that hangs is
/// cut off at the deadline.
///
/// # Errors
/// After `limit`: names `what` was waited for, for how long, and the last state seen.
pub async fn wait_until<T, F>(limit: Duration, what: &str, mut probe: F) -> Result<T>
where
    F: AsyncFnMut() -> Result<Progress<T>>,
{
    let mut patience = Patience::new(limit, what);
    loop {
        if let Some(value) = patience.look(probe()).await? {
            return Ok(value);
        }
    }
}

/// The loop of [`wait_until`] from within: for callers whose futures must be `Send`, which those of
/// an asynchronous closure are not known to be.
#[derive(Debug)]
pub(crate) struct Patience<'a> {
    what: &'a str,
    limit: Duration,
    deadline: Instant,
    last_state: Option<String>,
}

impl<'a> Patience<'a> {
    pub(crate) fn new(limit: Duration, what: &'a str) -> Self {
        Self {
            what,
            limit,
            deadline: Instant::now() + limit,
            last_state: None,
        }
    }

    /// One look: the value when `probe` is done, else `None` after a short sleep.
    ///
    /// # Errors
    /// When time has run out.
    pub(crate) async fn look<T>(
        &mut self,
        probe: impl Future<Output = Result<Progress<T>>>,
    ) -> Result<Option<T>> {
        let left = self.deadline.saturating_duration_since(Instant::now());
        match tokio::time::timeout(left, probe).await {
            Ok(Ok(Progress::Done(value))) => return Ok(Some(value)),
            Ok(Ok(Progress::NotYet(state))) => self.last_state = Some(state),
            Ok(Err(error)) => self.last_state = Some(format!("error: {error:#}")),
            Err(_) => {}
        }
        if Instant::now() >= self.deadline {
            let state = self
                .last_state
                .as_deref()
                .unwrap_or("the first look did not come back");
            let (what, limit) = (self.what, self.limit);
            bail!("waited {limit:?} in vain for {what}; last state: {state}");
        }
        tokio::time::sleep(POLL_INTERVAL).await;
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn gives_the_value_back() {
        let mut looks = 0;
        let value = wait_until(Duration::from_secs(5), "three looks", async || {
            looks += 1;
            Ok(if looks == 3 {
                Progress::Done(looks)
            } else {
                Progress::NotYet(String::new())
            })
        });
        assert_eq!(value.await.unwrap(), 3);
    }

    #[tokio::test]
    async fn names_what_was_waited_for_and_the_last_state() {
        let waiting = wait_until(Duration::from_millis(30), "twenty rows", async || {
            Ok(Progress::when(false, || String::from("7 of 20 rows")))
        });
        let text = waiting.await.unwrap_err().to_string();
        assert!(
            text.contains("twenty rows") && text.contains("7 of 20 rows"),
            "{text}"
        );
    }

    #[tokio::test]
    async fn a_probe_that_hangs_is_cut_off() {
        let waiting = wait_until::<(), _>(Duration::from_millis(30), "an answer", async || {
            std::future::pending().await
        });
        assert!(waiting.await.unwrap_err().to_string().contains("an answer"));
    }
}
