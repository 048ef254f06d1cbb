/* SPDX-License-Identifier: Apache-2.0
 * SIGINT and SIGTERM for long commands. */
#include "tools/interrupt.h"

#include <signal.h>
#include <stddef.h>

static volatile sig_atomic_t requested;

static void on_signal(int number) {
  signal(number, SIG_DFL);
  requested = 1;
}

void interrupt_listen(void) {
  const struct sigaction action = {.sa_handler = on_signal};
  sigaction(SIGINT, &action, NULL);
  sigaction(SIGTERM, &action, NULL);
}

bool interrupt_requested(void) {
  return requested != 0;
}
