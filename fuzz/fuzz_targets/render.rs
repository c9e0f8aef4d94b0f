#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| postrider_fuzz_targets::run("render", input));
