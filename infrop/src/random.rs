//! Randomness.

use std::{
    fs::File,
    hash::{BuildHasher, RandomState},
    io::Read,
};

/// Where bytes come from.
pub const SOURCE: &str = "/dev/urandom";

/// Random bytes from the kernel, in hexadecimal; good enough for tokens and keys.
pub fn hex(bytes: usize) -> std::io::Result<String> {
    let mut buffer = vec![0; bytes];
    File::open(SOURCE)?.read_exact(&mut buffer)?;
    Ok(buffer.iter().map(|byte| format!("{byte:02x}")).collect())
}

/// A number from 0 to 1, good enough to spread retries and for nothing else.
pub fn fraction() -> f64 {
    let number = RandomState::new().hash_one(std::process::id());
    f64::from(u32::try_from(number >> 32).unwrap_or_default()) / f64::from(u32::MAX)
}
