//! infrop killed with -9 at random moments, a few of those of `cargo xtask soak bring-up`.

use tests::kills::{Kills, Random, round};

pub(crate) async fn killed() -> anyhow::Result<()> {
    round("kills", &mut Random::new()?, Kills { bring_up: 4, removal: 1 }).await?;
    Ok(())
}
