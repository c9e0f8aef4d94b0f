//! What a soak adds up.

use std::collections::BTreeMap;
use std::time::Duration;

use postrider_tests::Findings;

/// Faults of one kind.
#[derive(Debug, Default, Clone, Copy)]
struct Kind {
    count: u32,
    longest: Duration,
}

/// All rounds together.
#[derive(Debug, Default)]
pub(super) struct Tally {
    pub(super) findings: Findings,
    kinds: BTreeMap<String, Kind>,
    longest: Option<(Duration, String)>,
}

impl Tally {
    /// A fault, and how long after its end everything was confirmed again. Of two faults at a time
    /// each is counted, and the time is the same.
    pub(super) fn fault(&mut self, kinds: &[String], recovery: Duration) {
        for kind in kinds {
            let entry = self.kinds.entry(kind.clone()).or_default();
            entry.count += 1;
            entry.longest = entry.longest.max(recovery);
        }
        if self
            .longest
            .as_ref()
            .is_none_or(|(time, _)| *time < recovery)
        {
            self.longest = Some((recovery, kinds.join(" with ")));
        }
    }

    /// The summary.
    pub(super) fn print(&self, seed: u64, took: Duration) {
        println!("\n==== soak, seed {seed}, {:.0} s ====", took.as_secs_f64());
        println!("faults  longest recovery  kind");
        for (name, kind) in &self.kinds {
            let seconds = kind.longest.as_secs_f64();
            println!("{:>6}  {seconds:>14.1} s  {name}", kind.count);
        }
        let faults: u32 = self.kinds.values().map(|kind| kind.count).sum();
        if let Some((time, name)) = &self.longest {
            let seconds = time.as_secs_f64();
            println!("{faults:>6}  {seconds:>14.1} s  all; the longest after: {name}");
        }
        let found = &self.findings;
        println!(
            "{} rows, {} messages, {} samples of the confirmation",
            found.rows, found.messages, found.samples
        );
        println!(
            "{} lost, {} out of order, {} stored twice, {} phantoms",
            found.lost, found.out_of_order, found.stored_twice, found.phantoms
        );
        for text in &found.described {
            println!("  {text}");
        }
    }
}
