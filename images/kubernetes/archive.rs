//! Container images as archives in OCI image layout, which `ctr images import` takes.
//!
//! One layer per image, zstd-compressed. The same input gives the same bytes.

use std::{
    fs::File,
    io::{self, BufWriter, Read, Write},
    path::{Path, PathBuf},
};

use serde_json::{Value, json};

use super::component::ARCHITECTURE;
use crate::{
    Error,
    digest::{Hashing, sha256},
    error::At,
};

/// Packs as fast as the disk writes; higher levels cost minutes and save little on machine code.
const COMPRESSION_LEVEL: i32 = 3;

/// An image to write.
#[derive(Debug, Clone)]
pub(crate) struct Image {
    /// The full name, for example `registry.k8s.io/pause:3.10.2`.
    pub(crate) name: String,
    pub(crate) entrypoint: Vec<String>,
    pub(crate) files: Vec<ImageFile>,
    /// A tar whose content goes below the files.
    pub(crate) base: Option<PathBuf>,
}

/// A file of an image.
#[derive(Debug, Clone)]
pub(crate) enum ImageFile {
    Program { from: PathBuf, to: String },
    Link { to: String, target: String },
}

/// A blob of the layout.
struct Blob {
    digest: String,
    size: u64,
}

impl Blob {
    fn descriptor(&self, media_type: &str) -> Value {
        json!({ "mediaType": media_type, "digest": format!("sha256:{}", self.digest), "size": self.size })
    }
}

impl Image {
    /// Writes the archive to `target`, with `work` as scratch.
    pub(crate) fn write(&self, target: &Path, work: &Path) -> Result<(), Error> {
        let layer_path = work.join("layer.tar.zst");
        let (layer, diff_id) = self.write_layer(&layer_path)?;
        let config = self.config(&diff_id).to_string();
        let config_blob = blob(&config);
        let manifest = json!({
            "schemaVersion": 2,
            "mediaType": "application/vnd.oci.image.manifest.v1+json",
            "config": config_blob.descriptor("application/vnd.oci.image.config.v1+json"),
            "layers": [layer.descriptor("application/vnd.oci.image.layer.v1.tar+zstd")],
        })
        .to_string();
        let manifest_blob = blob(&manifest);
        let mut descriptor = manifest_blob.descriptor("application/vnd.oci.image.manifest.v1+json");
        if let Value::Object(fields) = &mut descriptor {
            let tag = self.name.rsplit(':').next().unwrap_or_default();
            fields.insert(
                "annotations".to_owned(),
                json!({ "io.containerd.image.name": self.name, "org.opencontainers.image.ref.name": tag }),
            );
            fields.insert("platform".to_owned(), json!({ "os": "linux", "architecture": ARCHITECTURE }));
        }
        let index = json!({
            "schemaVersion": 2,
            "mediaType": "application/vnd.oci.image.index.v1+json",
            "manifests": [descriptor],
        })
        .to_string();
        let archive = || {
            let mut tar = tar::Builder::new(BufWriter::new(File::create(target)?));
            append(&mut tar, "oci-layout", 0o644, br#"{"imageLayoutVersion":"1.0.0"}"#.as_slice(), None)?;
            append(&mut tar, "index.json", 0o644, index.as_bytes(), None)?;
            for (blob, text) in [(&config_blob, &config), (&manifest_blob, &manifest)] {
                append(&mut tar, &format!("blobs/sha256/{}", blob.digest), 0o644, text.as_bytes(), None)?;
            }
            let file = File::open(&layer_path)?;
            append(&mut tar, &format!("blobs/sha256/{}", layer.digest), 0o644, file, Some(layer.size))?;
            tar.into_inner()?.into_inner()?.sync_all()
        };
        archive().at("write", target)
    }

    /// The compressed layer and the digest of its uncompressed content.
    fn write_layer(&self, path: &Path) -> Result<(Blob, String), Error> {
        let write = || {
            let compressed = Hashing::new(BufWriter::new(File::create(path)?));
            let encoder = zstd::Encoder::new(compressed, COMPRESSION_LEVEL)?;
            let mut tar = tar::Builder::new(Hashing::new(encoder));
            if let Some(base) = &self.base {
                copy_base(&mut tar, base)?;
            }
            // Programs of the control plane write temporary files; as nobody, too.
            let mut directory = header(0o1777, 0);
            directory.set_entry_type(tar::EntryType::Directory);
            tar.append_data(&mut directory, "tmp/", io::empty())?;
            for file in &self.files {
                match file {
                    ImageFile::Program { from, to } => {
                        let file = File::open(from)?;
                        let size = file.metadata()?.len();
                        append(&mut tar, to.trim_start_matches('/'), 0o755, file, Some(size))?;
                    }
                    ImageFile::Link { to, target } => {
                        let mut link = header(0o777, 0);
                        link.set_entry_type(tar::EntryType::Symlink);
                        tar.append_link(&mut link, to.trim_start_matches('/'), target)?;
                    }
                }
            }
            let (diff_id, _, encoder) = tar.into_inner()?.finish();
            let (digest, size, mut file) = encoder.finish()?.finish();
            file.flush()?;
            io::Result::Ok((Blob { digest, size }, diff_id))
        };
        write().at("write", path)
    }

    fn config(&self, diff_id: &str) -> Value {
        json!({
            "architecture": ARCHITECTURE,
            "os": "linux",
            "config": {
                "Entrypoint": self.entrypoint,
                "Env": ["PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"],
                "WorkingDir": "/",
            },
            "rootfs": { "type": "layers", "diff_ids": [format!("sha256:{diff_id}")] },
        })
    }
}

/// Takes one file out of the image in an archive.
pub(crate) fn extract(archive: &Path, file: &str, target: &Path) -> Result<(), Error> {
    let damaged = |why: &str| Error::Damaged { path: archive.to_owned(), why: why.to_owned() };
    let mut tar = tar::Archive::new(File::open(archive).at("read", archive)?);
    for entry in tar.entries().at("read", archive)? {
        let entry = entry.at("read", archive)?;
        // The layer is the one blob that is not JSON, told by zstd's magic number.
        let mut entry = io::BufReader::new(entry);
        let is_layer =
            io::BufRead::fill_buf(&mut entry).at("read", archive)?.starts_with(&[0x28, 0xb5, 0x2f, 0xfd]);
        if !is_layer {
            continue;
        }
        let mut layer = tar::Archive::new(zstd::Decoder::with_buffer(entry).at("read", archive)?);
        for member in layer.entries().at("read", archive)? {
            let mut member = member.at("read", archive)?;
            if member.path().at("read", archive)? == Path::new(file.trim_start_matches('/')) {
                member.unpack(target).at("write", target)?;
                return Ok(());
            }
        }
    }
    Err(damaged(&format!("has no {file}")))
}

fn blob(text: &str) -> Blob {
    Blob { digest: sha256(text), size: text.len() as u64 }
}

fn header(mode: u32, size: u64) -> tar::Header {
    let mut header = tar::Header::new_gnu();
    header.set_mode(mode);
    header.set_size(size);
    header.set_uid(0);
    header.set_gid(0);
    header.set_mtime(0);
    header
}

/// `size` may be left out for what is in memory.
fn append<W: Write, R: Read>(
    tar: &mut tar::Builder<W>,
    path: &str,
    mode: u32,
    mut content: R,
    size: Option<u64>,
) -> io::Result<()> {
    if let Some(size) = size {
        return tar.append_data(&mut header(mode, size), path, content);
    }
    let mut bytes = Vec::new();
    content.read_to_end(&mut bytes)?;
    tar.append_data(&mut header(mode, bytes.len() as u64), path, bytes.as_slice())
}

/// Copies a Debian tree, without what no program reads.
fn copy_base<W: Write>(tar: &mut tar::Builder<W>, base: &Path) -> io::Result<()> {
    const UNREAD: [&str; 8] = [
        "dev",
        "etc/apt",
        "usr/share/doc",
        "usr/share/lintian",
        "usr/share/locale",
        "usr/share/man",
        "var/cache",
        "var/lib",
    ];
    let mut base = tar::Archive::new(File::open(base)?);
    for entry in base.entries()? {
        let mut entry = entry?;
        let path = entry.path()?.into_owned();
        let path: PathBuf = path.strip_prefix(".").unwrap_or(&path).to_owned();
        if path.as_os_str().is_empty() || UNREAD.iter().any(|unread| path.starts_with(unread)) {
            continue;
        }
        let mut header = entry.header().clone();
        header.set_mtime(0);
        match entry.link_name()? {
            // A hard link's target is a path of the archive, which starts without "./" here.
            Some(link) if header.entry_type().is_hard_link() => {
                tar.append_link(&mut header, &path, link.strip_prefix(".").unwrap_or(&link))?;
            }
            Some(link) => tar.append_link(&mut header, &path, &link)?,
            None => tar.append_data(&mut header, &path, &mut entry)?,
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn the_same_input_gives_the_same_bytes_and_files_come_out_again() {
        let work = tempfile::tempdir().unwrap();
        let program = work.path().join("program");
        fs::write(&program, "#!machine code").unwrap();
        let image = Image {
            name: "registry.example/name:1.2".into(),
            entrypoint: vec!["/program".into()],
            files: vec![
                ImageFile::Program { from: program, to: "/usr/local/bin/program".into() },
                ImageFile::Link { to: "/program".into(), target: "usr/local/bin/program".into() },
            ],
            base: None,
        };
        let (one, two) = (work.path().join("one.tar"), work.path().join("two.tar"));
        image.write(&one, work.path()).unwrap();
        image.write(&two, work.path()).unwrap();
        assert_eq!(fs::read(&one).unwrap(), fs::read(&two).unwrap());
        let out = work.path().join("out");
        extract(&one, "/usr/local/bin/program", &out).unwrap();
        assert_eq!(fs::read_to_string(&out).unwrap(), "#!machine code");
        let error = extract(&one, "/absent", &out).unwrap_err().to_string();
        assert!(error.contains("has no /absent"), "{error}");
    }

    #[test]
    fn every_blob_is_named_by_its_content() {
        let work = tempfile::tempdir().unwrap();
        let image = Image { name: "r/n:t".into(), entrypoint: Vec::new(), files: Vec::new(), base: None };
        let path = work.path().join("image.tar");
        image.write(&path, work.path()).unwrap();
        let mut blobs = 0;
        for entry in tar::Archive::new(File::open(path).unwrap()).entries().unwrap() {
            let mut entry = entry.unwrap();
            let name = entry.path().unwrap().to_string_lossy().into_owned();
            let mut bytes = Vec::new();
            entry.read_to_end(&mut bytes).unwrap();
            if let Some(digest) = name.strip_prefix("blobs/sha256/") {
                assert_eq!(sha256(&bytes), digest);
                blobs += 1;
            }
        }
        assert_eq!(blobs, 3);
    }
}
