//! Given hosts, without asking any.

use std::cell::Cell;

use tokio::time::sleep;

use super::*;

#[tokio::test(start_paused = true)]
async fn no_more_hosts_are_asked_at_once_than_allowed() {
    for (at_once, expected) in [(0, 1), (1, 1), (4, 4), (100, 20)] {
        let (now, most) = (Cell::new(0_usize), Cell::new(0));
        let looks = (0..20).map(|number| {
            let (now, most) = (&now, &most);
            async move {
                now.set(now.get() + 1);
                most.set(most.get().max(now.get()));
                sleep(SHORT).await;
                now.set(now.get() - 1);
                number
            }
        });
        assert_eq!(some_at_once(at_once, looks).await, (0..20).collect::<Vec<_>>());
        assert_eq!(most.get(), expected, "{at_once}");
    }
}
