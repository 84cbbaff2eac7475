//! All that tests need on a fresh machine.

use images::{
    kubernetes::{self, PINNED, Request, Wish},
    site,
    steps::Steps,
    tools::{self, Tool, tool},
};
use infrop::provider::lab;

use crate::bundles;

/// What fixtures call beside what the product installs for itself.
const TOOLS: [Tool; 3] = [tool("nft", "nftables"), tool("nsenter", "util-linux"), tool("dpkg-deb", "dpkg")];

/// Installs tools, and builds the bundles and the root file system; what is there is left as it is.
///
/// If something cannot be had and `strict` is not set, it says so and goes on: tests that need it will be
/// skipped.
pub async fn run(strict: bool, steps: &Steps) -> anyhow::Result<()> {
    let tolerate = |result: anyhow::Result<()>| match result {
        Err(error) if !strict => {
            steps.note(format_args!("not set up, tests that need it are skipped: {error:#}"));
            Ok(())
        }
        result => result,
    };
    steps
        .step("set up", async {
            tolerate(set_up_hosts(steps).await)?;
            for version in PINNED {
                tolerate(set_up_bundle(version, steps).await)?;
            }
            Ok(())
        })
        .await
}

async fn set_up_hosts(steps: &Steps) -> anyhow::Result<()> {
    if let Some(obstacle) = lab::obstacle() {
        anyhow::bail!(obstacle);
    }
    tools::ensure(&TOOLS, steps).await?;
    lab::ensure_tools(steps).await?;
    // With the root file system it is made for.
    site::ensure(&bundles::cache()?, steps).await?;
    Ok(())
}

async fn set_up_bundle(version: &str, steps: &Steps) -> anyhow::Result<()> {
    let request = Request { version: version.parse()?, containerd: None, wish: Wish::default(), anew: false };
    kubernetes::build(&bundles::cache()?, &request, steps).await?;
    Ok(())
}
