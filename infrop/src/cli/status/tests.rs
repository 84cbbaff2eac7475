use super::*;

#[test]
fn ages_are_in_the_unit_that_says_enough() {
    for (seconds, expected) in
        [(-5, "0s"), (0, "0s"), (119, "119s"), (120, "2m"), (7199, "119m"), (7200, "2h"), (172_800, "2d")]
    {
        assert_eq!(age(SignedDuration::from_secs(seconds)), expected);
    }
}
