//! Debian file systems, from the mirror the machine itself is set to.

use std::{
    fs, io,
    path::{Path, PathBuf},
    time::Duration,
};

use program::Program;

use crate::{
    Error,
    digest::sha256,
    error::At,
    tools::{Tool, tool},
};

/// The release of all file systems. Its systemd still runs on cgroup v1 machines, newer ones refuse.
pub const CODENAME: &str = "bookworm";

/// What [`mmdebstrap`] needs.
pub(crate) const TOOLS: [Tool; 1] = [tool("mmdebstrap", "mmdebstrap")];

/// `mmdebstrap`, set to the machine's mirror, writing to `target` (a directory or a `.tar`).
pub(crate) fn mmdebstrap(variant: &str, packages: &[&str], sources: &[String], target: &Path) -> Program {
    Program::new("mmdebstrap")
        .arg(format!("--variant={variant}"))
        .arg(format!("--include={}", packages.join(",")))
        // No translations: nobody reads package descriptions on a host.
        .arg("--aptopt=Acquire::Languages \"none\"")
        .arg(CODENAME)
        .arg(target)
        .args(sources)
        .timeout(Duration::from_mins(20))
}

/// Downloads packages, and those they need that are not installed according to `status`, a file of dpkg, into
/// `directory`.
///
/// mmdebstrap sets apt up for this, because it knows a mirror also where the machine's own apt has none.
pub(crate) fn download(packages: &[&str], status: &Path, sources: &[String], directory: &Path) -> Program {
    const HOOK: &str = "APT_CONFIG=\"$MMDEBSTRAP_APT_CONFIG\" apt-get --yes --no-install-recommends \
        --download-only -o Dir::State::status=\"$INFROP_STATUS\" -o Dir::Cache::Archives=\"$INFROP_ARCHIVES/\" \
        install $INFROP_PACKAGES";
    Program::new("mmdebstrap")
        // Nothing is installed: the work is done by what runs last.
        .args(["--variant=custom", "--format=null"])
        .arg("--aptopt=Acquire::Languages \"none\"")
        .arg(format!("--customize-hook={HOOK}"))
        .args([CODENAME, "/dev/null"])
        .args(sources)
        .env("INFROP_STATUS", status)
        .env("INFROP_ARCHIVES", directory)
        .env("INFROP_PACKAGES", packages.join(" "))
        .timeout(Duration::from_mins(20))
}

/// A name for what is made of these packages from these sources.
pub(crate) fn name(packages: &[&str], sources: &[String]) -> String {
    let inputs = [CODENAME, &packages.join(" "), &sources.join("\n")].join("\0");
    format!("{CODENAME}-{}", sha256(inputs).get(..12).unwrap_or_default())
}

/// The lines for sources.list that name Debian's [`CODENAME`] in the machine's apt configuration.
///
/// None (a machine of another release) means: leave the choice to mmdebstrap.
pub(crate) fn sources(etc_apt: &Path) -> Result<Vec<String>, Error> {
    let mut files = vec![etc_apt.join("sources.list")];
    let parts = etc_apt.join("sources.list.d");
    if let Ok(entries) = fs::read_dir(&parts) {
        let mut listed = entries
            .map(|entry| entry.map(|entry| entry.path()))
            .collect::<io::Result<Vec<PathBuf>>>()
            .at("list", &parts)?;
        listed.sort();
        files.extend(listed);
    }
    let mut lines = Vec::new();
    for file in files {
        let parse = match file.extension().and_then(|extension| extension.to_str()) {
            Some("list") => one_line_entries,
            Some("sources") => deb822_entries,
            _ => continue,
        };
        match fs::read_to_string(&file) {
            Ok(text) => lines.extend(parse(&text)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error).at("read", &file),
        }
    }
    lines.dedup();
    Ok(lines)
}

/// One `deb` line, if these values are Debian's own archive.
fn line(uri: &str, suite: &str, components: &[&str], signed_by: Option<&str>) -> Option<String> {
    let ours = [CODENAME.to_owned(), format!("{CODENAME}-updates"), format!("{CODENAME}-security")];
    // Other publishers use the codename too, but neither Debian's components nor its key.
    let key = signed_by.filter(|key| key.starts_with('/'));
    let foreign = key.is_some_and(|key| !key.contains("debian-archive"));
    if foreign || !components.contains(&"main") || !ours.iter().any(|name| name == suite) {
        return None;
    }
    let options = key.map(|key| format!("[signed-by={key}] ")).unwrap_or_default();
    Some(format!("deb {options}{uri} {suite} main"))
}

fn one_line_entries(text: &str) -> Vec<String> {
    let entry = |text: &str| {
        let text = text.split('#').next()?.trim().strip_prefix("deb ")?.trim();
        let (options, rest) = match text.strip_prefix('[') {
            Some(text) => text.split_once(']')?,
            None => ("", text),
        };
        let signed_by = options.split_whitespace().find_map(|option| option.strip_prefix("signed-by="));
        let mut words = rest.split_whitespace();
        let (uri, suite) = (words.next()?, words.next()?);
        line(uri, suite, &words.collect::<Vec<_>>(), signed_by)
    };
    text.lines().filter_map(entry).collect()
}

fn deb822_entries(text: &str) -> Vec<String> {
    let mut lines = Vec::new();
    let text: Vec<&str> = text.lines().filter(|line| !line.starts_with('#')).collect();
    for stanza in text.split(|line| line.trim().is_empty()) {
        let field = |name: &str| {
            stanza.iter().find_map(|line| {
                let (key, value) = line.split_once(':')?;
                key.eq_ignore_ascii_case(name).then_some(value.trim())
            })
        };
        let words = |name: &str| field(name).unwrap_or_default().split_whitespace().collect::<Vec<_>>();
        if field("Enabled") == Some("no") || !words("Types").contains(&"deb") {
            continue;
        }
        for uri in words("URIs") {
            for suite in words("Suites") {
                lines.extend(line(uri, suite, &words("Components"), field("Signed-By")));
            }
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn debians_own_entries_are_taken_and_others_left() {
        let deb822 = "Types: deb deb-src\n# note\nURIs: http://mirror.example/debian\n\
            Suites: bookworm bookworm-updates bookworm-backports\nComponents: main contrib\n\
            Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg\n\n\
            Types: deb\nURIs: http://other.example/\nSuites: bookworm\nComponents: stable\n\n\
            Types: deb\nURIs: http://third.example/\nSuites: bookworm\nComponents: main\n\
            Signed-By: /etc/apt/keyrings/third.gpg\n\n\
            Enabled: no\nTypes: deb\nURIs: http://off.example/\nSuites: bookworm\nComponents: main\n";
        let expected = ["bookworm", "bookworm-updates"].map(|suite| {
            let key = "/usr/share/keyrings/debian-archive-keyring.gpg";
            format!("deb [signed-by={key}] http://mirror.example/debian {suite} main")
        });
        assert_eq!(deb822_entries(deb822), expected);
    }

    #[test]
    fn one_line_entries_with_and_without_options() {
        let text = "# deb http://off.example bookworm main\n\
            deb http://mirror.example/debian bookworm main non-free # mirror\n\
            deb-src http://mirror.example/debian bookworm main\n\
            deb [arch=amd64 signed-by=/k/debian-archive-keyring.gpg] http://sec.example bookworm-security main\n\
            deb http://mirror.example/debian trixie main\n";
        assert_eq!(
            one_line_entries(text),
            [
                "deb http://mirror.example/debian bookworm main",
                "deb [signed-by=/k/debian-archive-keyring.gpg] http://sec.example bookworm-security main"
            ]
        );
    }

    #[test]
    fn other_packages_or_another_mirror_have_another_name() {
        let mirror = ["deb http://a.example bookworm main".to_owned()];
        let one = name(&["a", "b"], &mirror);
        assert!(one.starts_with("bookworm-") && one.len() == "bookworm-".len() + 12);
        assert_ne!(one, name(&["a", "b"], &[]));
        assert_ne!(one, name(&["a"], &mirror));
    }

    #[test]
    fn both_kinds_of_files_are_read_and_a_bare_machine_has_none() {
        let etc = tempfile::tempdir().unwrap();
        assert!(sources(etc.path()).unwrap().is_empty());
        fs::create_dir(etc.path().join("sources.list.d")).unwrap();
        fs::write(etc.path().join("sources.list"), "deb http://a.example bookworm main\n").unwrap();
        fs::write(
            etc.path().join("sources.list.d/b.sources"),
            "Types: deb\nURIs: http://b.example\nSuites: bookworm-security\nComponents: main\n",
        )
        .unwrap();
        fs::write(etc.path().join("sources.list.d/c.disabled"), "deb http://c.example bookworm main\n")
            .unwrap();
        assert_eq!(
            sources(etc.path()).unwrap(),
            ["deb http://a.example bookworm main", "deb http://b.example bookworm-security main"]
        );
    }
}
