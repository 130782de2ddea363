//! Growths in what their request has reserved: what has room does not depend on when it comes, nor on what was kept where.

use super::*;

/// Slots that may be held at once in these tests.
const MAY_HOLD: u32 = 10;

/// The steps of a chain that holds all of them until nobody needs it any more.
fn held(steps: u32) -> UnfoldedChain {
    chain(steps, vec![UnfoldedStage { retention: Retention::All, ..stage(LEAF, &[]) }])
}

/// The same, one after the other, of which the device alone knows where they stop.
fn held_until_it_stops(steps: u32) -> UnfoldedChain {
    let mut stopping = lstm(steps, &[]);
    stopping.stages[0].retention = Retention::All;
    UnfoldedChain { stop: Some((0, 0)), ..stopping }
}

fn timeline() -> Timeline {
    let world = World::new(Config::default(), vec![ModelInfo { growth_slots: Some(MAY_HOLD), ..model(64) }], &[(0, 0, 10_000)]);
    Timeline { world, events: Vec::new(), lines: String::new() }
}

impl Timeline {
    fn ticks(&mut self, count: u32) {
        (0..count).for_each(|_| self.tick());
    }

    /// Until nothing happens any more: whether the first request finished; if not, it was given up because of its size.
    fn fits(mut self) -> bool {
        self.ticks(40);
        assert!(self.world.requests.is_empty(), "it goes on for ever");
        let too_large = (RequestId(0), Failure::GrewTooLarge { reserved: MAY_HOLD.into() });
        assert!(self.world.finished == 1 || self.world.failed == [too_large], "{:?}", self.world.failed);
        self.world.finished == 1
    }
}

/// Of three chains the one in the middle is kept: what is free lies before and behind it.
#[test]
fn a_growth_has_room_wherever_lies_what_was_kept() {
    let grows_by = |steps: u32| {
        let mut timeline = timeline();
        timeline.arrive(&growth(0, vec![held(4), held(2), held(4)], watch(&[1])));
        timeline.act();
        timeline.ticks(10);
        timeline.grow(&growth(3, vec![held(steps)], None));
        timeline.act();
        timeline.fits()
    };
    assert!((1..=MAY_HOLD - 2).all(grows_by));
    assert!(!grows_by(MAY_HOLD - 1), "two are kept");
}

/// A chain stops at once, steps of it that were queued ahead do not count, and fly all the same when the request is told to grow; or all have landed.
#[test]
fn whether_a_growth_has_room_does_not_depend_on_rows_in_flight() {
    let fits = |ticks: u32, kept: &[u32], steps: u32| {
        let mut timeline = timeline();
        timeline.arrive_stopping(&growth(0, vec![held_until_it_stops(6)], watch(kept)), 0, 0);
        timeline.act();
        timeline.ticks(ticks);
        timeline.grow(&growth(1, vec![held(steps)], None));
        timeline.act();
        timeline.fits()
    };
    for ticks in 0..8 {
        assert!(fits(ticks, &[], 6), "after {ticks} tasks there is no room for what has room later");
        assert!(fits(ticks, &[0], 4), "after {ticks} tasks there is no room beside what is kept");
        assert!(!fits(ticks, &[0], 5), "after {ticks} tasks more is held than may be");
        assert!(!fits(ticks, &[], MAY_HOLD + 1), "after {ticks} tasks there is room for any size");
    }
}

/// A growth that waits for room holds the next one up, and the request does not end before both have run.
#[test]
fn growths_that_wait_for_room_go_on_in_their_order() {
    let mut timeline = timeline();
    timeline.arrive(&growth(0, vec![held(6)], watch(&[])));
    timeline.act();
    timeline.grow(&growth(1, vec![held(6)], watch(&[])));
    timeline.grow(&growth(2, vec![held(6)], watch(&[])));
    timeline.grow(&growth(3, vec![chain(1, vec![stage(HEAD, &[])])], None));
    insta::assert_snapshot!(timeline.run(), @r"
    0 leaf: 0.0[0] 0.0[1] 0.0[2] 0.0[3] 0.0[4] 0.0[5]
    1 leaf: 0.1[0] 0.1[1] 0.1[2] 0.1[3] 0.1[4] 0.1[5]
    2 head: 0.3[0]
    2 leaf: 0.2[0] 0.2[1] 0.2[2] 0.2[3] 0.2[4] 0.2[5]
    4 request 0 leaves
    ");
}
