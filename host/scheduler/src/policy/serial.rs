//! Whole graphs, one request at a time, first come, first served: a baseline of LazyBatching (HPCA'21, section VI).

use crate::policy::graph::{BucketQueue, one_by_one};
use crate::policy::whole::WholeGraphs;

pub(super) fn policy() -> WholeGraphs<BucketQueue> {
    one_by_one()
}
