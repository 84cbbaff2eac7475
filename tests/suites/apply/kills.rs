//! infrop killed with -9 at random moments, a few of those of `cargo xtask soak bring-up`.

use anyhow::ensure;
use tests::kills::{Kills, Random, round};

pub(crate) async fn killed() -> anyhow::Result<()> {
    let wanted = Kills { bring_up: 4, removal: 1 };
    let hits = round("kills", &mut Random::new()?, wanted).await?;
    ensure!(hits.bring_up > 0 && hits.removal == wanted.removal, "not each was hit: {hits:?}");
    Ok(())
}
