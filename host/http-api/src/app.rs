//! What every request shares.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use cellwright_gate::Gate;

use crate::limits::Limits;
use crate::metrics::{HttpFigures, Pages};
use crate::request_id::IdSource;
use crate::streams::OpenStreams;

pub(crate) struct App {
    pub(crate) gate: Arc<Gate>,
    pub(crate) limits: Limits,
    pub(crate) ids: IdSource,
    pub(crate) figures: HttpFigures,
    pub(crate) pages: Pages,
    pub(crate) streams: Arc<OpenStreams>,
    /// Whether something was still under way on a connection when the time to stop was over.
    pub(crate) cut_off: AtomicBool,
}

impl App {
    pub(crate) fn new(gate: Arc<Gate>, limits: Limits) -> Self {
        Self {
            gate,
            limits,
            ids: IdSource::new(),
            figures: HttpFigures::default(),
            pages: Pages::default(),
            streams: Arc::default(),
            cut_off: AtomicBool::new(false),
        }
    }
}
