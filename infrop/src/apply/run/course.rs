//! What goes on around the things that a run does.

use tokio::time::sleep;

use super::*;
use crate::{
    apply::testing::{Fake, Silence, lab_context},
    provider::Power,
    writer::{self, FileRecord, Holding, Record as _},
};

fn options() -> Options {
    Options {
        timeout: Duration::from_mins(10),
        parallel: 1,
        removals: Removals::default(),
        take_over: false,
        metrics: None,
    }
}

#[tokio::test(start_paused = true)]
async fn nobody_else_gets_in_while_a_look_takes_long() {
    let directory = tempfile::tempdir().unwrap();
    let record = directory.path().join("writer.json");
    let context = lab_context(Fake { patience: Duration::from_mins(1), ..Fake::new(&record) });
    let (_ask, stop) = watch::channel(false);
    let other = async {
        sleep(Duration::from_secs(20)).await;
        let record = Box::new(FileRecord::new(record.clone()));
        let refused = Holding::acquire(record, "b", false, &|_| ()).await;
        assert!(matches!(refused, Err(writer::Error::Held { .. })), "{refused:?}");
    };
    let (options, progress) = (options(), Silence);
    let (ended, ()) = tokio::join!(run(&context, &options, &progress, stop), other);
    assert!(matches!(ended.unwrap().outcome, Outcome::Blocked { .. }));
    assert_eq!(FileRecord::new(record).read().await.unwrap().entry.unwrap().holder, "");
}

#[tokio::test(start_paused = true)]
async fn a_host_that_never_comes_up_has_the_end_of_its_console_as_its_reason() {
    let directory = tempfile::tempdir().unwrap();
    let computes = vec![Fake::compute("control-1", Power::On)];
    let context = lab_context(Fake { computes, ..Fake::new(&directory.path().join("writer.json")) });
    let (_ask, stop) = watch::channel(false);
    let ended = run(&context, &options(), &Silence, stop).await.unwrap();
    let Outcome::Blocked { reasons } = ended.outcome else { panic!("{:?}", ended.outcome) };
    let why = &reasons["control-1"];
    assert!(why.contains("cannot reach") && why.ends_with("; its console ends with: no disk"), "{why}");
}
