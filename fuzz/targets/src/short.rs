//! Fuzzing without a fuzzer: the seeds of a target, and random changes of them.

use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use crate::{Target, seeds};

/// Most changes to one seed before it is tried.
const MOST_CHANGES: u64 = 8;

/// When a round ends.
#[derive(Debug, Clone, Copy)]
pub enum Until {
    /// After so many inputs.
    Inputs(u64),
    /// After so much time.
    Time(Duration),
}

/// An input that made a target panic.
#[derive(Debug, Clone)]
pub struct Finding {
    /// The input.
    pub input: Vec<u8>,
    /// What the panic said, and where.
    pub panic: String,
}

/// Tries the seeds of a target and changes of them; returns how many inputs it tried.
///
/// # Errors
/// The first input that made it panic.
pub fn round(target: Target, seed: u64, until: Until) -> Result<u64, Finding> {
    let seeds = seeds::of(target.name);
    let begun = Instant::now();
    let mut tried = 0;
    for input in &seeds {
        attempt(target, input)?;
        tried += 1;
    }
    let mut dice = Dice(seed | 1);
    loop {
        let ends = match until {
            Until::Inputs(count) => tried >= count,
            Until::Time(time) => tried % 64 == 0 && begun.elapsed() >= time,
        };
        if ends {
            return Ok(tried);
        }
        let input = changed(&mut dice, &seeds, target.max_len_bytes);
        attempt(target, &input)?;
        tried += 1;
    }
}

thread_local! {
    static PANIC: RefCell<Option<String>> = const { RefCell::new(None) };
}

fn attempt(target: Target, input: &[u8]) -> Result<(), Finding> {
    static HOOK: std::sync::Once = std::sync::Once::new();
    HOOK.call_once(|| {
        let print = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            let caught = PANIC
                .with_borrow_mut(|panic| panic.as_mut().map(|panic| *panic = info.to_string()));
            if caught.is_none() {
                print(info);
            }
        }));
    });
    PANIC.set(Some(String::new()));
    let result = catch_unwind(AssertUnwindSafe(|| (target.run)(input)));
    let panic = PANIC.take().unwrap_or_default();
    result.map_err(|_| Finding {
        input: input.to_vec(),
        panic,
    })
}

/// "xorshift64*".
struct Dice(u64);

impl Dice {
    fn below(&mut self, end: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        let number = self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 16;
        usize::try_from(number % (end.max(1) as u64)).unwrap()
    }
}

/// A seed with some changes.
fn changed(dice: &mut Dice, seeds: &[Vec<u8>], max_len_bytes: usize) -> Vec<u8> {
    let none = Vec::new();
    let pick = |dice: &mut Dice| seeds.get(dice.below(seeds.len())).unwrap_or(&none).clone();
    let mut input = pick(dice);
    for _ in 0..=dice.below(usize::try_from(MOST_CHANGES).unwrap()) {
        let at = dice.below(input.len() + 1);
        let size = 1 << dice.below(7);
        let length = 1 + dice.below(size);
        let end = (at + length).min(input.len());
        match dice.below(8) {
            0 if at < input.len() => input[at] ^= 1 << dice.below(8),
            1 if at < input.len() => input[at] = interesting(dice),
            2 => input.insert(at, interesting(dice)),
            3 => drop(input.drain(at..end)),
            4 => {
                let copy = input[at..end].to_vec();
                let to = dice.below(input.len() + 1);
                input.splice(to..to, copy);
            }
            5 => {
                let other = pick(dice);
                let from = dice.below(other.len() + 1);
                let to = (from + length).min(other.len());
                input.splice(at..end, other[from..to].iter().copied());
            }
            6 => input.extend((0..length).map(|_| interesting(dice))),
            _ => input.truncate(at.max(1)),
        }
    }
    input.truncate(max_len_bytes);
    input
}

/// Any byte, and more often one that means something.
fn interesting(dice: &mut Dice) -> u8 {
    const MARKS: &[u8] = b"\0\x01\x7f\x80\xff\r\n\t .*>%$_{}[]\"'\\:/@?&=,#;-+0129aZ";
    match dice.below(2) {
        0 => MARKS[dice.below(MARKS.len())],
        _ => u8::try_from(dice.below(256)).unwrap(),
    }
}
