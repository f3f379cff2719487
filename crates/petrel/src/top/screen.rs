//! The live display: asks for the status once a second, draws, and obeys keys.
//!
//! The terminal is set back in every case: when the reader quits, on an error, on a panic (by the hook that
//! ratatui installs) and on the signals that end a program.
#![expect(clippy::disallowed_methods, reason = "a command has no worker")]

use std::io::{self, IsTerminal};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use modules::status::model::Status;
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use ratatui::style::{Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::{DefaultTerminal, Frame};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;

use super::Source;
use super::view::{Rates, View, quiet, troubled};

/// Shows the status until the reader quits.
///
/// # Errors
/// The terminal cannot be read or written.
pub(super) fn run(source: Source, first: Status) -> io::Result<()> {
    // Blocked in all threads that follow, and received by one of them.
    let signals = SigSet::from_iter([
        Signal::SIGTERM,
        Signal::SIGINT,
        Signal::SIGHUP,
        Signal::SIGQUIT,
    ]);
    signals.thread_set_mask()?;
    let (sender, news) = channel();
    let is_paused = Arc::new(AtomicBool::new(false));
    wait_for_the_end(signals, sender.clone())?;
    keep_asking(source, sender, Arc::clone(&is_paused));
    let _set_back = SetBack;
    let terminal = ratatui::try_init()?;
    Screen::new(first, is_paused).show(terminal, &news)
}

/// Sets the terminal back when it is dropped.
struct SetBack;

impl Drop for SetBack {
    fn drop(&mut self) {
        // A terminal that is gone needs nothing.
        let _ = ratatui::try_restore();
    }
}

/// What other threads tell the one that draws.
enum ScreenNews {
    Status(Result<Box<Status>, String>),
    /// A signal ends the program, or the terminal is gone.
    End,
}

/// Ends the display when a signal comes or the terminal is gone. The library that reads keys tries for ever to read
/// from a terminal that is gone, so the program ends without it. If standard input is no
/// terminal, the kernel sends SIGHUP.
fn wait_for_the_end(signals: SigSet, sender: Sender<ScreenNews>) -> io::Result<()> {
    let signals = SignalFd::with_flags(&signals, SfdFlags::SFD_CLOEXEC)?;
    thread::spawn(move || {
        let keys = io::stdin();
        let mut watched = vec![PollFd::new(&signals, PollFlags::IN)];
        if keys.is_terminal() {
            // Without flags, only that it is gone is reported.
            watched.push(PollFd::new(&keys, PollFlags::empty()));
        }
        while poll(&mut watched, None) == Err(Errno::INTR) {}
        // The other side is gone when the program ends anyway.
        let _ = sender.send(ScreenNews::End);
        thread::sleep(GRACE);
        drop(SetBack);
        std::process::exit(0);
    });
    Ok(())
}

fn keep_asking(source: Source, sender: Sender<ScreenNews>, is_paused: Arc<AtomicBool>) {
    thread::spawn(move || {
        loop {
            thread::sleep(EVERY);
            if is_paused.load(Ordering::Relaxed) {
                continue;
            }
            if sender
                .send(ScreenNews::Status(source.fetch().map(Box::new)))
                .is_err()
            {
                return;
            }
        }
    });
}

struct Screen {
    status: Status,
    rates: Rates,
    view: View,
    /// How many lines of each view are above the window.
    scrolled: [usize; View::ALL.len()],
    is_paused: Arc<AtomicBool>,
    /// Why there was no answer, if the last question had none.
    trouble: Option<String>,
    is_over: bool,
}

impl Screen {
    fn new(status: Status, is_paused: Arc<AtomicBool>) -> Screen {
        let mut rates = Rates::default();
        rates.note(&status, Instant::now());
        Screen {
            status,
            rates,
            view: View::Overview,
            scrolled: [0; View::ALL.len()],
            is_paused,
            trouble: None,
            is_over: false,
        }
    }

    fn show(
        mut self,
        mut terminal: DefaultTerminal,
        news: &Receiver<ScreenNews>,
    ) -> io::Result<()> {
        let mut is_old = true;
        while !self.is_over {
            if is_old {
                terminal.draw(|frame| self.draw(frame))?;
            }
            is_old = false;
            if event::poll(LOOK_EVERY)? {
                is_old = true;
                self.obey(&event::read()?);
            }
            for news in news.try_iter() {
                is_old = true;
                self.take(news);
            }
        }
        Ok(())
    }

    fn take(&mut self, news: ScreenNews) {
        match news {
            ScreenNews::Status(Ok(status)) if !self.is_paused.load(Ordering::Relaxed) => {
                self.rates.note(&status, Instant::now());
                self.status = *status;
                self.trouble = None;
            }
            ScreenNews::Status(Ok(_)) => {}
            ScreenNews::Status(Err(message)) => self.trouble = Some(message),
            ScreenNews::End => self.is_over = true,
        }
    }

    fn obey(&mut self, event: &Event) {
        // A new size needs nothing but the next drawing.
        let Event::Key(KeyEvent {
            code,
            modifiers,
            kind: KeyEventKind::Press | KeyEventKind::Repeat,
            ..
        }) = event
        else {
            return;
        };
        let views = View::ALL.len();
        let index = self.view as usize;
        let line = &mut self.scrolled[index];
        match code {
            KeyCode::Char('c') if modifiers.contains(KeyModifiers::CONTROL) => self.is_over = true,
            KeyCode::Char('q') | KeyCode::Esc => self.is_over = true,
            KeyCode::Char('p' | ' ') => {
                self.is_paused.fetch_xor(true, Ordering::Relaxed);
            }
            KeyCode::Tab | KeyCode::Right => self.view = View::ALL[(index + 1) % views],
            KeyCode::BackTab | KeyCode::Left => {
                self.view = View::ALL[(index + views - 1) % views];
            }
            KeyCode::Char(digit @ '1'..='4') => {
                self.view = View::ALL[*digit as usize - '1' as usize];
            }
            KeyCode::Down | KeyCode::Char('j') => *line += 1,
            KeyCode::Up | KeyCode::Char('k') => *line = line.saturating_sub(1),
            KeyCode::PageDown => *line += PAGE_LINES,
            KeyCode::PageUp => *line = line.saturating_sub(PAGE_LINES),
            KeyCode::Home => *line = 0,
            KeyCode::End => *line = usize::MAX,
            _ => {}
        }
    }

    fn draw(&mut self, frame: &mut Frame<'_>) {
        let area = frame.area();
        let lines = self
            .view
            .lines(&self.status, &self.rates, area.width.into());
        let room = usize::from(area.height.saturating_sub(2));
        let scrolled = &mut self.scrolled[self.view as usize];
        *scrolled = (*scrolled).min(lines.len().saturating_sub(room));
        let shown = lines.iter().skip(*scrolled).take(room);
        let (head, foot) = (self.head(), foot());
        let rows = std::iter::once(&head).chain(shown);
        let buffer = frame.buffer_mut();
        for (y, line) in (area.y..area.bottom()).zip(rows) {
            buffer.set_line(area.x, y, line, area.width);
        }
        if area.height > 2 {
            buffer.set_line(area.x, area.bottom() - 1, &foot, area.width);
        }
    }

    /// The views, and whether the display is live.
    fn head(&self) -> Line<'static> {
        let mut spans = Vec::new();
        for (index, view) in View::ALL.into_iter().enumerate() {
            let style = match view == self.view {
                true => Style::new().add_modifier(Modifier::REVERSED),
                false => quiet(),
            };
            spans.push(Span::styled(
                format!(" {} {} ", index + 1, view.name()),
                style,
            ));
        }
        spans.push(
            match (&self.trouble, self.is_paused.load(Ordering::Relaxed)) {
                (_, true) => Span::styled("  paused", troubled()),
                (Some(trouble), _) => Span::styled(format!("  {trouble}"), troubled()),
                (None, _) => Span::raw(""),
            },
        );
        Line::from(spans)
    }
}

fn foot() -> Line<'static> {
    Line::styled("q quit   tab view   ↑↓ scroll   p pause", quiet())
}

/// How often the server is asked.
const EVERY: Duration = Duration::from_secs(1);
/// How long the display has to end by itself.
const GRACE: Duration = Duration::from_secs(1);
/// How long the display waits for a key before it looks for other news.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// By how much the page keys scroll.
const PAGE_LINES: usize = 10;

#[cfg(test)]
mod tests {
    use super::*;

    fn screen() -> Screen {
        Screen::new(super::super::view::tests::status(), Arc::default())
    }

    fn press(screen: &mut Screen, code: KeyCode) {
        screen.obey(&Event::Key(KeyEvent::new(code, KeyModifiers::NONE)));
    }

    /// What is on a terminal of this size.
    fn drawn(screen: &mut Screen, width: u16, height: u16) -> Vec<String> {
        let backend = ratatui::backend::TestBackend::new(width, height);
        let mut terminal = ratatui::Terminal::new(backend).expect("a terminal in memory");
        terminal.draw(|frame| screen.draw(frame)).expect("drawn");
        let buffer = terminal.backend().buffer();
        buffer
            .content
            .chunks(width.into())
            .map(|row| row.iter().map(|cell| cell.symbol()).collect())
            .collect()
    }

    #[test]
    fn keys_change_the_view_scroll_and_end() {
        let mut screen = screen();
        press(&mut screen, KeyCode::Tab);
        assert_eq!(screen.view, View::Backends);
        press(&mut screen, KeyCode::BackTab);
        press(&mut screen, KeyCode::Left);
        assert_eq!(screen.view, View::Workers);
        press(&mut screen, KeyCode::Char('3'));
        press(&mut screen, KeyCode::End);
        let bottom = drawn(&mut screen, 80, 10);
        press(&mut screen, KeyCode::Down);
        assert_eq!(drawn(&mut screen, 80, 10), bottom, "not beyond the end");
        press(&mut screen, KeyCode::Home);
        assert!(
            drawn(&mut screen, 80, 10)[1].contains("2.5 s"),
            "{bottom:?}"
        );
        assert!(!screen.is_over);
        press(&mut screen, KeyCode::Char('q'));
        assert!(screen.is_over);
    }

    #[test]
    fn a_pause_keeps_what_is_shown_and_trouble_is_told() {
        let mut screen = screen();
        press(&mut screen, KeyCode::Char('p'));
        screen.take(ScreenNews::Status(Ok(Box::default())));
        let shown = drawn(&mut screen, 100, 30);
        assert!(shown[0].contains("paused"), "{shown:?}");
        assert!(shown[1].contains("1.6.0"), "{shown:?}");
        press(&mut screen, KeyCode::Char('p'));
        screen.take(ScreenNews::Status(Err("no server listens".to_owned())));
        assert!(drawn(&mut screen, 100, 30)[0].contains("no server listens"));
        screen.take(ScreenNews::End);
        assert!(screen.is_over);
    }

    #[test]
    fn every_size_of_the_terminal_is_drawn() {
        let mut screen = screen();
        for view in View::ALL {
            screen.view = view;
            for (width, height) in [(1, 1), (2, 3), (20, 5), (79, 24), (300, 100)] {
                drawn(&mut screen, width, height);
            }
        }
    }
}
