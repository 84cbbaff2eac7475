//! Randomness for tokens and keys, from the kernel.

use std::{fs::File, io::Read};

/// Where they come from.
pub const SOURCE: &str = "/dev/urandom";

/// Random bytes, in hexadecimal.
pub fn hex(bytes: usize) -> std::io::Result<String> {
    let mut buffer = vec![0; bytes];
    File::open(SOURCE)?.read_exact(&mut buffer)?;
    Ok(buffer.iter().map(|byte| format!("{byte:02x}")).collect())
}
