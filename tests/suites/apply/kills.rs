//! infrop killed with -9 at random moments, a few of those of `cargo xtask soak bring-up`.

use anyhow::ensure;
use tests::kills::{Kills, Random, round};

pub(crate) async fn killed() -> anyhow::Result<()> {
    let hits = round("kills", &mut Random::new()?, Kills { bring_up: 4, removal: 1 }).await?;
    // One that comes when infrop has ended proves nothing.
    ensure!(hits.bring_up > 0 && hits.removal > 0, "not each was hit: {hits:?}");
    Ok(())
}
