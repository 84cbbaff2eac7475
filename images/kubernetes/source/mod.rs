//! Where the programs of a bundle come from.
//!
//! Tried in this order, the choice printed: a directory the user names; the official release download, where
//! that host can be reached; a build from the public Go modules.

mod directory;
mod modules;
mod release;

use std::{
    fmt,
    path::{Path, PathBuf},
};

use self::release::Reach;
pub use self::release::Servers;
use super::component::{Binary, Release};
use crate::{Error, steps::Steps, tools};

/// What the user says about where programs come from.
#[derive(Debug, Clone, Default)]
pub struct Wish {
    /// A directory that has all programs.
    pub directory: Option<PathBuf>,
    /// The release servers to ask.
    pub servers: Servers,
}

/// Programs that are wanted.
#[derive(Debug)]
pub(crate) struct Order<'a> {
    pub(crate) release: &'a Release,
    pub(crate) binaries: &'a [Binary],
    /// Where they go.
    pub(crate) bin: &'a Path,
    /// Room for what does not stay.
    pub(crate) work: &'a Path,
}

/// A source that was chosen.
#[derive(Debug, Clone)]
pub(crate) enum Source {
    Directory(PathBuf),
    Release(release::Client),
    Modules,
}

impl Source {
    /// Chooses, and says what and why.
    pub(crate) async fn choose(
        wish: &Wish,
        kubernetes: &Release,
        containerd: &Release,
        steps: &Steps,
    ) -> Result<Self, Error> {
        if let Some(directory) = &wish.directory {
            let source = Self::Directory(directory.clone());
            steps.note(format_args!("programs come from {source}, as asked"));
            return Ok(source);
        }
        let client = release::Client::new(wish.servers.clone())?;
        let unreachable = match client.reach(&[kubernetes, containerd]).await {
            Reach::Yes => {
                let source = Self::Release(client);
                steps.note(format_args!("programs come from {source}"));
                return Ok(source);
            }
            Reach::NotFound(url) => {
                return Err(Error::NotReleased { kubernetes: kubernetes.version.clone(), url });
            }
            Reach::No(why) => why,
        };
        if tools::find("go").is_none() {
            return Err(Error::NoSource { version: kubernetes.version.clone(), release: unreachable });
        }
        let source = Self::Modules;
        steps.note(format_args!(
            "programs come from {source}: the release server cannot be reached ({unreachable})"
        ));
        Ok(source)
    }

    /// Delivers what is ordered.
    pub(crate) async fn fetch(&self, order: &Order<'_>, steps: &Steps) -> Result<(), Error> {
        match self {
            Self::Directory(directory) => {
                let what = format!("copy {} from {}", order.release, directory.display());
                steps.step(what, async { directory::copy(directory, order.binaries, order.bin) }).await
            }
            Self::Release(client) => client.fetch(order, steps).await,
            Self::Modules => modules::build(order, steps).await,
        }
    }

    /// The word for it in bundle.json.
    pub(crate) fn kind(&self) -> &'static str {
        match self {
            Self::Directory(_) => "directory",
            Self::Release(_) => "release",
            Self::Modules => "go-modules",
        }
    }
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Directory(directory) => write!(f, "the directory {}", directory.display()),
            Self::Release(client) => write!(f, "the official release at {client}"),
            Self::Modules => f.write_str("the public Go modules, built here"),
        }
    }
}
