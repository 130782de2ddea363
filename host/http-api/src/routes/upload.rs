//! `PUT /v1/models/{m}`: a bundle's archive, from the network to whoever unpacks it without ever being held as a whole.

use std::io::{self, Read};
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::{Request, State};
use axum::response::Response;
use bytes::{Buf as _, Bytes};
use cellwright_protocol::messages::admin::Uploaded;
use cellwright_registry::Scope;
use cellwright_serving::{Abandoned, ErrorKind, NewUpload};
use http::StatusCode;
use http_body::Body as _;
use tokio::sync::OwnedSemaphorePermit;
use tokio::sync::mpsc::{self, Receiver, Sender};
use tokio::time::timeout;

use super::{Target, json};
use crate::app::App;
use crate::auth::Caller;
use crate::body::{Pace, only_as_it_is, too_large};
use crate::limits::Limits;
use crate::query;
use crate::refusal::Refusal;
use crate::turns::Turn;

/// Pieces on their way between the network and the disk.
const PIECES_MAX: usize = 16;
/// A model of this name would have the path of another resource.
const RESERVED: &str = "stats";
/// Bytes a second that an upload must bring on average: it holds more than a call's body does, and keeps others waiting.
const RATE_MIN: u64 = 64 << 10;
/// How long an upload waits while as many as allowed are being received.
const FULL_WAIT_MAX: Duration = Duration::from_secs(30);

pub(super) async fn upload(State(app): State<Arc<App>>, caller: Caller, target: Target, request: Request) -> Result<Response, Refusal> {
    caller.require(Scope::Upload)?;
    if target.model == RESERVED {
        return Err(Refusal::bad_input("`stats` cannot be the name of a model: /v2/models/stats is the path of all models' statistics"));
    }
    let activate = query::truth(request.uri(), "activate", true)?;
    only_as_it_is(request.headers())?;
    let room = Room::take(&app, &caller).await?;
    let uploaded = receive(&app, (caller, &target), &mut request.into_body(), (activate, room)).await?;
    json(if uploaded.existed { StatusCode::OK } else { StatusCode::CREATED }, &uploaded)
}

/// What an upload holds until its last work is done, whether or not its client is still there.
struct Room {
    _turn: Turn,
    _permit: OwnedSemaphorePermit,
}

impl Room {
    /// Waits for one: a while for other tenants' uploads, and as long as it takes for those before it of the same tenant.
    async fn take(app: &App, caller: &Caller) -> Result<Self, Refusal> {
        let many = || Refusal::new(ErrorKind::Busy, "too many uploads of this tenant wait for their turn: try again later");
        let turn = app.tenant_uploads.take(&caller.tenant).await.ok_or_else(many)?;
        let full = || Refusal::new(ErrorKind::Unavailable, "as many uploads as allowed are being received: try again later");
        let permit = timeout(FULL_WAIT_MAX, app.uploads.clone().acquire_owned()).await.map_err(|_| full())?;
        Ok(Self { _turn: turn, _permit: permit.map_err(Refusal::internal)? })
    }
}

async fn receive(
    app: &Arc<App>,
    (caller, target): (Caller, &Target),
    body: &mut Body,
    (activate, room): (bool, Room),
) -> Result<Uploaded, Refusal> {
    let model = target.name()?;
    if body.size_hint().lower() > app.limits.upload_bytes_max {
        return Err(too_large(app.limits.upload_bytes_max));
    }
    let (sender, pieces) = mpsc::channel(PIECES_MAX);
    let abandoned = Abandoned::default();
    let _leaving = abandoned.on_drop();
    let receiving = app.blocking(move |app| {
        let mut archive = Archive { pieces, piece: Bytes::new(), ended: false };
        let uploaded = app.host.upload(&caller.tenant, &model, &mut archive, NewUpload { activate, abandoned });
        drop(room);
        uploaded
    });
    let (sent, received) = tokio::join!(send(body, sender, &app.limits), receiving);
    // A body that broke off is why its archive did.
    sent.and(received)
}

/// What the network hands to the disk. A channel that closes without an end means that the body broke off.
enum Piece {
    Bytes(Bytes),
    End,
}

async fn send(body: &mut Body, pieces: Sender<Piece>, limits: &Limits) -> Result<(), Refusal> {
    let mut pace = Pace::new(limits).at_least(RATE_MIN);
    let mut left = limits.upload_bytes_max;
    while let Some(bytes) = pace.next(body).await? {
        left = left.checked_sub(bytes.len() as u64).ok_or_else(|| too_large(limits.upload_bytes_max))?;
        if pieces.send(Piece::Bytes(bytes)).await.is_err() {
            // Who reads has seen enough, and says why.
            return Ok(());
        }
    }
    let _ = pieces.send(Piece::End).await;
    Ok(())
}

/// The body as a thread that may block reads it.
struct Archive {
    pieces: Receiver<Piece>,
    piece: Bytes,
    ended: bool,
}

impl Read for Archive {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while self.piece.is_empty() && !self.ended {
            match self.pieces.blocking_recv() {
                Some(Piece::Bytes(bytes)) => self.piece = bytes,
                Some(Piece::End) => self.ended = true,
                None => return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the upload broke off")),
            }
        }
        let length = buffer.len().min(self.piece.len());
        self.piece.copy_to_slice(&mut buffer[..length]);
        Ok(length)
    }
}
