//! What hosts see of this computer: trees in one directory that all of them have mounted, read only. What
//! appears there appears on hosts that run.

use std::{
    collections::BTreeSet,
    ffi::OsString,
    fs::{self, File, FileType},
    io,
    os::unix::fs::{MetadataExt, symlink},
    path::Path,
};

use images::cache::remove_tree;
use nix::fcntl::{AT_FDCWD, RenameFlags, renameat2};

use super::{
    error::{At, Error},
    paths::Paths,
};

/// Makes hosts see a tree under a name. It appears as a whole; the same again changes nothing, another tree
/// takes the place of the first.
pub(super) fn offer(paths: &Paths, name: &str, source: &Path) -> Result<(), Error> {
    if name.is_empty() || name.starts_with('.') || name.contains('/') {
        return Err(Error::Offer(name.to_owned()));
    }
    let path = paths.offering_lock();
    let lock = File::create(&path).at("create", &path)?;
    lock.lock().at("lock", &path)?;
    let (staging, target) = (paths.offering(), paths.bundles().join(name));
    // Of one that was killed.
    remove_tree(&staging)?;
    if !target.exists() {
        place(source, &staging)?;
        return fs::rename(&staging, &target).at("publish", &target);
    }
    if is_same(source, &target)? {
        return Ok(());
    }
    place(source, &staging)?;
    renameat2(AT_FDCWD, &staging, AT_FDCWD, &target, RenameFlags::RENAME_EXCHANGE).at("publish", &target)?;
    Ok(remove_tree(&staging)?)
}

/// Puts a tree at `to`: by hard links, which take no room and no time, or by copies on another file system.
fn place(from: &Path, to: &Path) -> Result<(), Error> {
    let metadata = from.symlink_metadata().at("read", from)?;
    if metadata.is_dir() {
        fs::create_dir(to).at("create", to)?;
        for name in names(from)? {
            place(&from.join(&name), &to.join(&name))?;
        }
        fs::set_permissions(to, metadata.permissions()).at("set the mode of", to)
    } else if metadata.is_symlink() {
        symlink(fs::read_link(from).at("read", from)?, to).at("link", to)
    } else if fs::hard_link(from, to).is_ok() {
        Ok(())
    } else {
        fs::copy(from, to).at("copy", from)?;
        let copy = File::options().write(true).open(to).at("open", to)?;
        let time = metadata.modified().at("read", from)?;
        // On the disk before the name is.
        copy.set_modified(time).and_then(|()| copy.sync_all()).at("write", to)
    }
}

/// Whether a tree is a link or a copy of another.
fn is_same(one: &Path, two: &Path) -> Result<bool, Error> {
    let (a, b) = (one.symlink_metadata().at("read", one)?, two.symlink_metadata().at("read", two)?);
    let kind = |kind: FileType| (kind.is_dir(), kind.is_symlink());
    if kind(a.file_type()) != kind(b.file_type()) {
        return Ok(false);
    }
    if a.is_symlink() {
        return Ok(fs::read_link(one).at("read", one)? == fs::read_link(two).at("read", two)?);
    }
    if !a.is_dir() {
        let linked = (a.dev(), a.ino()) == (b.dev(), b.ino());
        let copied = (a.len(), a.mtime(), a.mtime_nsec()) == (b.len(), b.mtime(), b.mtime_nsec());
        return Ok(linked || copied);
    }
    let names = (names(one)?, names(two)?);
    if names.0 != names.1 {
        return Ok(false);
    }
    for name in names.0 {
        if !is_same(&one.join(&name), &two.join(&name))? {
            return Ok(false);
        }
    }
    Ok(true)
}

fn names(directory: &Path) -> Result<BTreeSet<OsString>, Error> {
    let entries = fs::read_dir(directory).at("list", directory)?;
    entries.map(|entry| entry.map(|entry| entry.file_name())).collect::<io::Result<_>>().at("list", directory)
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Fixture {
        directory: tempfile::TempDir,
        paths: Paths,
    }

    impl Fixture {
        fn new() -> Self {
            let directory = tempfile::tempdir().unwrap();
            let paths = Paths::new(directory.path().join("lab"));
            fs::create_dir_all(paths.bundles()).unwrap();
            Self { directory, paths }
        }

        /// A tree as the cache has them.
        fn source(&self, name: &str, text: &str) -> std::path::PathBuf {
            let source = self.directory.path().join(name);
            fs::create_dir_all(source.join("apt")).unwrap();
            fs::write(source.join("apt/a.deb"), text).unwrap();
            symlink("apt/a.deb", source.join("latest")).unwrap();
            source
        }

        fn seen(&self, file: &str) -> String {
            fs::read_to_string(self.paths.bundles().join(file)).unwrap()
        }
    }

    #[test]
    fn a_tree_is_linked_once_and_the_same_again_changes_nothing() {
        let fixture = Fixture::new();
        let source = fixture.source("one", "1");
        offer(&fixture.paths, "1.37.1", &source).unwrap();
        assert_eq!(fixture.seen("1.37.1/latest"), "1");
        let inode = |path: &Path| path.metadata().unwrap().ino();
        let target = fixture.paths.bundles().join("1.37.1");
        assert_eq!(inode(&target.join("apt/a.deb")), inode(&source.join("apt/a.deb")));
        let before = inode(&target);
        offer(&fixture.paths, "1.37.1", &source).unwrap();
        assert_eq!(inode(&target), before);
    }

    #[test]
    fn another_tree_of_the_same_name_takes_its_place() {
        let fixture = Fixture::new();
        let (one, two) = (fixture.source("one", "1"), fixture.source("two", "22"));
        offer(&fixture.paths, "site", &one).unwrap();
        offer(&fixture.paths, "site", &two).unwrap();
        assert_eq!(fixture.seen("site/apt/a.deb"), "22");
        assert!(!fixture.paths.offering().exists());
        assert_eq!(fs::read_to_string(one.join("apt/a.deb")).unwrap(), "1");
    }

    #[test]
    fn what_a_killed_one_left_is_not_published() {
        let fixture = Fixture::new();
        let source = fixture.source("one", "1");
        fs::create_dir(fixture.paths.offering()).unwrap();
        fs::write(fixture.paths.offering().join("half"), "x").unwrap();
        offer(&fixture.paths, "site", &source).unwrap();
        assert_eq!(names(&fixture.paths.bundles().join("site")).unwrap().len(), 2);
        assert!(names(&fixture.paths.bundles()).unwrap().len() == 1 && !fixture.paths.offering().exists());
    }

    #[test]
    fn names_that_lead_elsewhere_are_refused() {
        let fixture = Fixture::new();
        let source = fixture.source("one", "1");
        for name in ["", ".", "..", ".hidden", "a/b", "/etc"] {
            assert!(matches!(offer(&fixture.paths, name, &source), Err(Error::Offer(_))), "{name}");
        }
    }
}
