//! All that tests need on a fresh machine.

use images::{
    kubernetes::{self, PINNED, Request, Wish},
    node,
    steps::Steps,
    tools::{self, Tool, tool},
};
use infrop::provider::lab;

use crate::bundles;

/// What fixtures call beside what the product installs for itself.
const TOOLS: [Tool; 3] = [tool("nft", "nftables"), tool("nsenter", "util-linux"), tool("dpkg-deb", "dpkg")];

/// Installs tools, and builds the bundles and the root file system; what is there is left as it is.
pub async fn run(steps: &Steps) -> anyhow::Result<()> {
    steps
        .step("set up", async {
            let cache = bundles::cache()?;
            if lab::obstacle().is_none() {
                tools::ensure(&TOOLS, steps).await?;
                lab::ensure_tools(steps).await?;
                node::ensure(&cache, steps).await?;
            }
            for version in PINNED {
                let request = Request {
                    version: version.parse()?,
                    containerd: None,
                    wish: Wish::default(),
                    anew: false,
                };
                kubernetes::build(&cache, &request, steps).await?;
            }
            Ok(())
        })
        .await
}
