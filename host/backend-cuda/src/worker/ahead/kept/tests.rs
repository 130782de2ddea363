//! Rows that are kept for steps to come: who has them, who gets room, and when it comes back.

use std::collections::{BTreeMap, BTreeSet};

use super::*;

const CELL: DeviceAddress = DeviceAddress(4096);
const LANE: LaneId = LaneId(3);

fn place(row: u32) -> Place {
    Place { row, pass: 1 }
}

fn with(rows: u32) -> Kept {
    let mut kept = Kept::default();
    kept.add_cell(CELL, rows);
    kept
}

#[test]
fn steps_are_taken_in_order_and_what_was_passed_by_is_free() {
    let mut kept = with(2 * BLOCK + 5);
    assert_eq!([kept.room(CELL, 1), kept.room(CELL, BLOCK + 1), kept.room(CELL, 1000)], [0..1, 0..BLOCK + 1, 0..2 * BLOCK]);
    for step in 5..9 {
        kept.keep(CELL, (LANE, step), place(step));
    }
    assert_eq!([4, 5, 8, 9].map(|step| kept.steps(CELL, LANE, step)), [0, 4, 1, 0]);
    assert_eq!(kept.steps(DeviceAddress(1), LANE, 5), 0, "it is another cell's");
    assert_eq!(kept.take(CELL, LANE, 6), Some(place(6)), "step 5 never comes");
    assert_eq!([5, 6, 7].map(|step| kept.steps(CELL, LANE, step)), [0, 0, 2]);
    assert_eq!(kept.take(CELL, LANE, 6), None, "it is somebody's");
    kept.begin(LANE, 9);
    assert_eq!(kept.room(CELL, 1), BLOCK..BLOCK + 1, "what was taken is read yet");
    kept.free(CELL, [6].into_iter());
    assert_eq!(kept.room(CELL, 1), 0..1);
}

#[test]
fn a_lane_that_leaves_or_goes_back_keeps_nothing() {
    let mut kept = with(BLOCK);
    for round in [0, 7] {
        for step in 0..STEPS + 1 {
            kept.keep(CELL, (LANE, round + step), place(step));
        }
        assert_eq!(kept.steps(CELL, LANE, round + STEPS), 1, "there is no room for one more: it begins anew");
        kept.keep(CELL, (LANE, round), place(1));
        assert_eq!([round, round + STEPS].map(|step| kept.steps(CELL, LANE, step)), [1, 0]);
        assert!(kept.room(CELL, 1).is_empty());
        if round == 0 {
            kept.forget_lane(LANE);
            assert_eq!(kept.room(CELL, 1), 0..1);
        }
    }
    kept.forget_cell(CELL);
    assert_eq!((kept.steps(CELL, LANE, 7), kept.room(CELL, 1)), (0, 0..0));
}

/// Against a list of whose every row is.
#[test]
fn no_row_is_ever_two_steps() {
    let mut kept = with(24 * BLOCK);
    let mut random = 11_u64;
    let mut draw = |below: u32| {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (random >> 33) as u32 % below
    };
    let (mut next, mut read): (BTreeMap<u32, u32>, Vec<u32>) = (BTreeMap::new(), Vec::new());
    let (mut taken, mut refused) = (0, 0);
    for _ in 0..20_000 {
        let lane = draw(40);
        let index = LaneId(lane);
        let step = *next.entry(lane).or_default();
        match draw(5) {
            0 | 1 => {
                let room = kept.room(CELL, draw(3 * BLOCK) + 1);
                refused += u32::from(room.is_empty());
                let held: BTreeSet<u32> =
                    kept.runs.iter().flatten().flat_map(|run| run.steps.clone().map(|step| run.place(step).row)).collect();
                assert!(room.clone().all(|row| !held.contains(&row) && !read.contains(&row)), "{room:?} is not free");
                let has = kept.steps(CELL, index, step);
                kept.begin(index, step);
                room.zip(step + has..step + STEPS).for_each(|(row, step)| kept.keep(CELL, (index, step), place(row)));
            }
            2 => {
                if let Some(place) = kept.take(CELL, index, step) {
                    read.push(place.row);
                    taken += 1;
                }
                next.insert(lane, step + 1);
            }
            3 => kept.free(CELL, read.drain(..)),
            _ if draw(8) == 0 => {
                kept.forget_lane(index);
                next.remove(&lane);
            }
            _ => {}
        }
    }
    assert!(taken > 1000 && refused > 10, "{taken} steps were taken, {refused} had no room");
    kept.free(CELL, read.into_iter());
    (0..40).for_each(|lane| kept.forget_lane(LaneId(lane)));
    assert_eq!(kept.room(CELL, u32::MAX), 0..24 * BLOCK, "what nobody has is free");
}
