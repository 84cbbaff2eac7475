//! Files that are either old or new, never half written.

use std::{
    fs::{self, File, OpenOptions, Permissions},
    io::{self, Write},
    os::unix::fs::{OpenOptionsExt, PermissionsExt},
    path::Path,
};

/// Ends the name of a file that is being written; one left by a crash is overwritten by the next writer.
const UNFINISHED: &str = ".node-agent-new";

/// Replaces a file in one step: after a power cut there is the old text or the new one, with these permissions.
pub fn write(path: &Path, text: &[u8], mode: u32) -> io::Result<()> {
    let (Some(directory), Some(name)) = (path.parent(), path.file_name()) else {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a file's path"));
    };
    fs::create_dir_all(directory)?;
    let mut unfinished = name.to_owned();
    unfinished.push(UNFINISHED);
    let unfinished = directory.join(unfinished);
    let written = write_through(&unfinished, text, mode).and_then(|()| fs::rename(&unfinished, path));
    if written.is_err() {
        // The first error is the one to tell; what is left is overwritten next time.
        let _ = fs::remove_file(&unfinished);
    }
    written?;
    File::open(directory)?.sync_all()
}

fn write_through(path: &Path, text: &[u8], mode: u32) -> io::Result<()> {
    let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(mode).open(path)?;
    // The mode given at creation is cut by the umask, and a leftover has its own.
    file.set_permissions(Permissions::from_mode(mode))?;
    file.write_all(text)?;
    file.sync_all()
}

/// Removes a file; one that is not there is fine.
pub fn remove(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

/// The text of a file; none if there is no such file.
pub fn read(path: &Path) -> io::Result<Option<String>> {
    match fs::read_to_string(path) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_replaced_with_its_mode_and_nothing_is_left() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a/b");
        write(&path, b"one", 0o600).unwrap();
        // A leftover of a crash, with other permissions.
        fs::write(directory.path().join("a/b.node-agent-new"), "half").unwrap();
        write(&path, b"two", 0o644).unwrap();
        assert_eq!(read(&path).unwrap().unwrap(), "two");
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o7777, 0o644);
        assert_eq!(fs::read_dir(directory.path().join("a")).unwrap().count(), 1);
        remove(&path).unwrap();
        remove(&path).unwrap();
        assert_eq!(read(&path).unwrap(), None);
    }
}
