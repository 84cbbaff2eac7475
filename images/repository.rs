//! A signed apt repository: `Packages`, `Release`, `InRelease` and the key that apt is to trust.
//!
//! The key is made for one repository and its private half is gone when that is done: nobody can add a package
//! to it later.

use std::{fmt::Write as _, fs, path::Path, time::Duration};

use jiff::Timestamp;
use program::Program;

use crate::{
    Error,
    digest::sha256,
    error::At,
    kubernetes::ARCHITECTURE,
    package::Built,
    tools::{Tool, tool},
};

/// The public key's file in the repository.
pub const KEY_FILE: &str = "repository.asc";

/// What signing needs.
pub(crate) const TOOLS: [Tool; 3] =
    [tool("gpg", "gpg"), tool("gpg-agent", "gpg-agent"), tool("gpgconf", "gpgconf")];

/// Indexes and signs the packages that are in `directory`.
pub async fn publish(directory: &Path, packages: &[Built], label: &str, now: Timestamp) -> Result<(), Error> {
    let index = packages.iter().map(|package| package.index_entry.as_str()).collect::<Vec<_>>().join("\n");
    let release = release(&index, label, now);
    let write = |name: &str, text: &str| {
        let path = directory.join(name);
        fs::write(&path, text).at("write", &path)
    };
    write("Packages", &index)?;
    write("Release", &release)?;
    let keys = Keys::generate(label).await?;
    write("InRelease", &keys.clear_sign(&release).await?)?;
    write(KEY_FILE, &keys.public().await?)?;
    keys.discard().await
}

fn release(index: &str, label: &str, now: Timestamp) -> String {
    let mut text = String::new();
    let date = now.strftime("%a, %d %b %Y %H:%M:%S UTC");
    let _ = write!(
        text,
        "Origin: infrop\nLabel: {label}\nDate: {date}\nArchitectures: {ARCHITECTURE}\n\
         SHA256:\n {} {} Packages\n",
        sha256(index),
        index.len()
    );
    text
}

/// A key pair in a directory of its own. The directory is short-lived and short-named: gpg-agent's socket
/// must fit into 108 bytes.
struct Keys {
    home: tempfile::TempDir,
    user: String,
}

impl Keys {
    async fn generate(label: &str) -> Result<Self, Error> {
        let parent = std::env::temp_dir();
        let home = tempfile::Builder::new().prefix("gpg").tempdir().at("create a directory in", &parent)?;
        let keys = Self { home, user: format!("infrop repository of {label}") };
        keys.gpg()
            .args(["--passphrase", "", "--quick-generate-key", &keys.user, "ed25519", "sign", "never"])
            .run()
            .await?;
        Ok(keys)
    }

    fn gpg(&self) -> Program {
        Program::new("gpg")
            .arg("--homedir")
            .arg(self.home.path())
            .args(["--batch", "--quiet", "--no-tty", "--pinentry-mode", "loopback"])
            .timeout(Duration::from_mins(1))
    }

    async fn clear_sign(&self, text: &str) -> Result<String, Error> {
        Ok(self.gpg().args(["--digest-algo", "SHA256", "--clear-sign"]).stdin(text).run().await?)
    }

    async fn public(&self) -> Result<String, Error> {
        Ok(self.gpg().args(["--armor", "--export", &self.user]).run().await?)
    }

    /// Ends the agent that gpg started; the directory goes with `self`.
    async fn discard(self) -> Result<(), Error> {
        let home = self.home.path();
        Program::new("gpgconf").arg("--homedir").arg(home).args(["--kill", "all"]).run().await?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_release_file_has_apts_date_form_and_the_indexs_hash() {
        let text = release("abc", "x", Timestamp::from_second(0).unwrap());
        assert!(text.contains("Date: Thu, 01 Jan 1970 00:00:00 UTC\n"), "{text}");
        assert!(text.contains(
            "SHA256:\n ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad 3 Packages\n"
        ));
    }
}
