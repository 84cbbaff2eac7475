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
    replace(path, text, mode, File::sync_all)
}

/// The same with what brings a file or a directory to the disk, so that a test sees when that is: no power cut of the lab
/// loses what the kernel still holds.
fn replace(path: &Path, text: &[u8], mode: u32, sync: impl Fn(&File) -> io::Result<()>) -> io::Result<()> {
    let (Some(directory), Some(name)) = (path.parent(), path.file_name()) else {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a file's path"));
    };
    fs::create_dir_all(directory)?;
    let mut unfinished = name.to_owned();
    unfinished.push(UNFINISHED);
    let unfinished = directory.join(unfinished);
    let written = write_through(&unfinished, text, mode, &sync).and_then(|()| fs::rename(&unfinished, path));
    if written.is_err() {
        // The first error is the one to tell; what is left is overwritten next time.
        let _ = fs::remove_file(&unfinished);
    }
    written?;
    // Until then only the kernel knows the new name.
    sync(&File::open(directory)?)
}

fn write_through(
    path: &Path,
    text: &[u8],
    mode: u32,
    sync: impl Fn(&File) -> io::Result<()>,
) -> io::Result<()> {
    let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(mode).open(path)?;
    // The mode given at creation is cut by the umask, and a leftover has its own.
    file.set_permissions(Permissions::from_mode(mode))?;
    file.write_all(text)?;
    sync(&file)
}

/// Removes a file; one that is not there is fine.
pub fn remove(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

/// The text of a file, to look at; none if there is no such file. What is no text in it shows as such: a file that a
/// person wrote may have any bytes, and is no reason not to see the rest of the host.
pub fn read(path: &Path) -> io::Result<Option<String>> {
    Ok(read_bytes(path)?.map(|bytes| String::from_utf8_lossy(&bytes).into_owned()))
}

/// The text of a file, to write it again with something changed: all of it has to be text.
pub fn read_whole(path: &Path) -> io::Result<Option<String>> {
    let text = read_bytes(path)?.map(String::from_utf8).transpose();
    text.map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
}

/// What is in a file; none if there is no such file.
pub fn read_bytes(path: &Path) -> io::Result<Option<Vec<u8>>> {
    match fs::read(path) {
        Ok(bytes) => Ok(Some(bytes)),
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

    #[test]
    fn the_text_is_on_the_disk_before_it_has_its_name_and_the_name_before_anything_begins() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("journal");
        fs::write(&path, "old").unwrap();
        let synced = std::cell::RefCell::new(Vec::new());
        let sync = |file: &File| {
            let metadata = file.metadata()?;
            let what = if metadata.is_dir() { "directory".to_owned() } else { metadata.len().to_string() };
            synced.borrow_mut().push((what, read(&path)?.unwrap()));
            Ok(())
        };
        replace(&path, b"newer", 0o600, sync).unwrap();
        let expected = [("5", "old"), ("directory", "newer")].map(|(what, text)| (what.into(), text.into()));
        assert_eq!(synced.into_inner(), expected);
    }

    /// The kernel says of a pipe that it cannot be brought to a disk, so who gets no error has not asked it.
    #[test]
    fn it_is_the_kernel_that_is_asked_and_an_error_leaves_the_old_text() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("journal");
        fs::write(&path, "old").unwrap();
        let pipe = directory.path().join("journal.node-agent-new");
        nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRWXU).unwrap();
        // Someone who reads, for a writer waits for that.
        let _reader = OpenOptions::new().read(true).write(true).open(&pipe).unwrap();
        let error = write(&path, b"new", 0o600).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(nix::libc::EINVAL), "{error}");
        assert_eq!(fs::read(&path).unwrap(), b"old");
    }

    #[test]
    fn what_is_no_text_can_be_looked_at_and_is_not_written_again() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("fstab");
        fs::write(&path, b"# caf\xe9\n/dev/a / ext4\n").unwrap();
        assert_eq!(read(&path).unwrap().unwrap().lines().nth(1), Some("/dev/a / ext4"));
        assert_eq!(read_whole(&path).unwrap_err().kind(), io::ErrorKind::InvalidData);
        fs::write(&path, "# café\n").unwrap();
        assert_eq!(read_whole(&path).unwrap().unwrap(), "# café\n");
    }
}
