//! The scheduler in virtual time: called until it is content, and woken when it asks to be.

use cellwright_scheduler::{Commands, Config, Event, Scheduler, Time};

/// The scheduler may ask to be woken at once; so often in one instant it must have been told something new.
const WAKES_MAX: u32 = 1000;

/// A scheduler, and what it is told and what it wants.
#[derive(Debug)]
pub(crate) struct Driven {
    scheduler: Scheduler,
    /// What it will be told.
    pub(crate) events: Vec<Event>,
    /// What it commanded last.
    pub(crate) commands: Commands,
    /// When it will be woken, or was.
    woken_at: Option<u64>,
}

impl Driven {
    pub(crate) fn new(config: Config) -> Self {
        Self { scheduler: Scheduler::new(config), events: Vec::new(), commands: Commands::default(), woken_at: None }
    }
}

/// What a scheduler's commands are carried out in.
pub(crate) trait World {
    fn driven(&mut self) -> &mut Driven;

    /// What was commanded happens.
    fn carry_out(&mut self, now: u64);

    /// [`Event::Wake`] is to be among the events of that time.
    fn wake_at(&mut self, at: u64);

    /// Lets the scheduler act until it is content.
    fn act(&mut self, now: u64) {
        for _ in 0..WAKES_MAX {
            let Driven { scheduler, events, commands, .. } = self.driven();
            scheduler.handle(Time(now), events, commands);
            self.carry_out(now);
            let driven = self.driven();
            let Some(Time(at)) = driven.commands.wake_at else { return };
            if at > now {
                // Whoever is woken earlier asks again.
                if driven.woken_at.is_none_or(|earlier| earlier <= now || at < earlier) {
                    driven.woken_at = Some(at);
                    self.wake_at(at);
                }
                return;
            }
            driven.events.push(Event::Wake);
        }
    }
}
