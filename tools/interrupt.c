/* SPDX-License-Identifier: Apache-2.0
 * SIGINT, SIGTERM and SIGHUP for long commands. */
#include "tools/interrupt.h"

#include <signal.h>
#include <stddef.h>

static volatile sig_atomic_t requested;

static void on_signal(int number) {
  signal(number, SIG_DFL);
  requested = 1;
}

/* A signal that the program was started to ignore (nohup) stays ignored. */
static void listen_to(int number) {
  struct sigaction action = {.sa_handler = on_signal}, before;
  if (sigaction(number, NULL, &before) == 0 && before.sa_handler != SIG_IGN) sigaction(number, &action, NULL);
}

void interrupt_listen(void) {
  listen_to(SIGINT);
  listen_to(SIGTERM);
  listen_to(SIGHUP);
}

bool interrupt_requested(void) {
  return requested != 0;
}
