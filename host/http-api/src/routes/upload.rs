//! `PUT /v1/models/{m}`: a bundle's archive, from the network to whoever unpacks it without ever being held as a whole.

use std::io::{self, Read};
use std::sync::Arc;

use axum::body::Body;
use axum::extract::{Request, State};
use axum::response::Response;
use bytes::{Buf as _, Bytes};
use cellwright_gate::{Limit, NewUpload, UploadPermit};
use cellwright_protocol::messages::admin::Uploaded;
use cellwright_registry::Scope;
use cellwright_serving::Abandoned;
use http::StatusCode;
use http_body::Body as _;
use tokio::sync::mpsc::{self, Receiver, Sender};

use super::{Target, json};
use crate::app::App;
use crate::auth::Caller;
use crate::body::{Pace, only_as_it_is};
use crate::limits::Limits;
use crate::query;
use crate::refusal::Refusal;

/// Pieces on their way between the network and the disk.
const PIECES_MAX: usize = 16;
/// A model of this name would have the path of another resource.
const RESERVED: &str = "stats";
/// Bytes a second that an upload must bring on average: it holds more than a call's body does, and keeps others waiting.
const RATE_MIN: u64 = 64 << 10;

pub(super) async fn upload(State(app): State<Arc<App>>, caller: Caller, target: Target, request: Request) -> Result<Response, Refusal> {
    caller.require(Scope::Upload)?;
    if target.model == RESERVED {
        return Err(Refusal::bad_input("`stats` cannot be the name of a model: /v2/models/stats is the path of all models' statistics"));
    }
    let activate = query::truth(request.uri(), "activate", true)?;
    only_as_it_is(request.headers())?;
    let turn = app.gate.upload_permit(&caller).await?;
    let uploaded = receive(&app, (caller, &target), &mut request.into_body(), (activate, turn)).await?;
    json(if uploaded.existed { StatusCode::OK } else { StatusCode::CREATED }, &uploaded)
}

async fn receive(
    app: &Arc<App>,
    (caller, target): (Caller, &Target),
    body: &mut Body,
    (activate, turn): (bool, UploadPermit),
) -> Result<Uploaded, Refusal> {
    let model = target.name()?;
    let bytes_max = app.gate.bounds().upload_bytes_max;
    if body.size_hint().lower() > bytes_max {
        return Err(Limit::UploadBytes.reached(bytes_max).into());
    }
    let (sender, pieces) = mpsc::channel(PIECES_MAX);
    let abandoned = Abandoned::default();
    let _leaving = abandoned.on_drop();
    let receiving = app.gate.blocking(move |gate| {
        let mut archive = Archive { pieces, piece: Bytes::new(), ended: false };
        let uploaded = gate.upload(&caller.tenant, &model, &mut archive, NewUpload { activate, abandoned });
        drop(turn);
        Ok::<_, Refusal>(uploaded?)
    });
    let (sent, received) = tokio::join!(send(body, sender, (&app.limits, bytes_max)), receiving);
    // A body that broke off is why its archive did.
    sent.and(received)
}

/// What the network hands to the disk. A channel that closes without an end means that the body broke off.
enum Piece {
    Bytes(Bytes),
    End,
}

async fn send(body: &mut Body, pieces: Sender<Piece>, (limits, bytes_max): (&Limits, u64)) -> Result<(), Refusal> {
    let mut pace = Pace::new(limits).at_least(RATE_MIN);
    let mut left = bytes_max;
    while let Some(bytes) = pace.next(body).await? {
        left = left.checked_sub(bytes.len() as u64).ok_or_else(|| Limit::UploadBytes.reached(bytes_max))?;
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
