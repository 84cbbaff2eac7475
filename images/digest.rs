//! sha256 of files and of streams.

use std::{
    fs::File,
    io::{self, Read, Write},
    path::Path,
};

use sha2::{Digest, Sha256};

use crate::{Error, error::At};

/// Large enough that hashing, not system calls, takes the time.
const BUFFER: usize = 1 << 20;

/// The sha256 of a file, in hexadecimal.
pub fn sha256_file(path: &Path) -> Result<String, Error> {
    let mut hasher = Hashing::new(io::sink());
    let mut file = File::open(path).at("read", path)?;
    let mut buffer = vec![0; BUFFER];
    loop {
        let count = file.read(&mut buffer).at("read", path)?;
        if count == 0 {
            return Ok(hasher.finish().0);
        }
        hasher.write_all(buffer.get(..count).unwrap_or_default()).at("read", path)?;
    }
}

/// The sha256 of a text, in hexadecimal.
pub(crate) fn sha256(bytes: impl AsRef<[u8]>) -> String {
    hex(&Sha256::digest(bytes))
}

fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write;
    bytes.iter().fold(String::new(), |mut text, byte| {
        // Writing to a String cannot fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// A writer that hashes and counts what passes through it.
pub(crate) struct Hashing<W> {
    inner: W,
    hasher: Sha256,
    count: u64,
}

impl<W: Write> Hashing<W> {
    pub(crate) fn new(inner: W) -> Self {
        Self { inner, hasher: Sha256::new(), count: 0 }
    }

    /// The digest, the number of bytes, and the writer below.
    pub(crate) fn finish(self) -> (String, u64, W) {
        (hex(&self.hasher.finalize()), self.count, self.inner)
    }
}

impl<W: Write> Write for Hashing<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let count = self.inner.write(bytes)?;
        self.hasher.update(bytes.get(..count).unwrap_or_default());
        self.count += count as u64;
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}
