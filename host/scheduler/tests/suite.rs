//! The scheduler against a slow, literal oracle, in seeded simulation, and in small timelines that can be checked by eye.

mod suite {
    pub(crate) mod batching;
    pub(crate) mod dice;
    pub(crate) mod fairness;
    pub(crate) mod flood;
    pub(crate) mod graphs;
    pub(crate) mod model;
    pub(crate) mod oracle;
    pub(crate) mod places;
    pub(crate) mod sharing;
    pub(crate) mod simulation;
    mod slices;
    pub(crate) mod timelines;
    pub(crate) mod traffic;
    pub(crate) mod world;
}
