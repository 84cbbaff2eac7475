//! Programs from a directory that the user names.

use std::{fs, path::Path};

use crate::{
    Error,
    error::At,
    kubernetes::component::{Binary, Component},
};

/// Copies the programs, executable whatever their mode was.
pub(super) fn copy(directory: &Path, binaries: &[Binary], bin: &Path) -> Result<(), Error> {
    use std::os::unix::fs::PermissionsExt;
    for binary in binaries {
        let from = directory.join(binary.name);
        if !from.is_file() {
            let all = Component::ALL.into_iter().flat_map(Component::binaries);
            return Err(Error::MissingBinary {
                directory: directory.to_owned(),
                binary: binary.name.to_owned(),
                needed: all.map(|binary| binary.name).collect::<Vec<_>>().join(", "),
            });
        }
        let to = bin.join(binary.name);
        fs::copy(&from, &to).at("copy", &from)?;
        fs::set_permissions(&to, fs::Permissions::from_mode(0o755)).at("set the mode of", &to)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_missing_program_and_all_needed_ones_are_named() {
        let (from, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let binaries = Component::Kubernetes.binaries();
        fs::write(from.path().join(binaries[0].name), "x").unwrap();
        let error = copy(from.path(), binaries, to.path()).unwrap_err().to_string();
        assert!(error.contains("has no kubectl") && error.contains("containerd-shim-runc-v2"), "{error}");
    }
}
