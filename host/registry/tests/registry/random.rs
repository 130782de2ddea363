//! Random sequences of operations, each compared with the oracle, with the registry closed and opened again now and then.

use cellwright_registry::Registry;
use proptest::prelude::*;

use crate::operations::{Operation, apply, assert_same, assert_whole, view};
use crate::oracle::Oracle;
use crate::temporary;

#[derive(Clone, Debug)]
enum Step {
    Do(Operation),
    Reopen,
}

fn step() -> impl Strategy<Value = Step> {
    let operation = (any::<u64>(), any::<u32>()).prop_map(|(random, number)| Step::Do(Operation::drawn(random, number)));
    prop_oneof![20 => operation, 1 => Just(Step::Reopen)]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_registry_does_what_the_oracle_does(steps in prop::collection::vec(step(), 1..80)) {
        let folder = temporary();
        let mut registry = Registry::open(folder.path()).unwrap();
        let mut oracle = Oracle::default();
        for step in &steps {
            match step {
                Step::Do(operation) => {
                    assert_same(&apply(&registry, operation), &oracle.apply(operation), operation);
                    assert_same(&view(&registry), &oracle.view(), operation);
                }
                Step::Reopen => {
                    drop(registry);
                    registry = Registry::open(folder.path()).unwrap();
                    assert_same(&view(&registry), &oracle.view(), step);
                }
            }
        }
        assert_whole(&registry);
    }
}
