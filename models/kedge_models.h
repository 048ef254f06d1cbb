/* SPDX-License-Identifier: Apache-2.0
 *
 * Kedge as a library: load a model, train it, probe it. This header brings in the headers meant for callers;
 * each says who owns what. From the bottom up:
 *
 *   core/kedge.h                     statuses and messages, memory, devices, graphs
 *   models/text/tokenizer.h          text to ids and back
 *   models/text/samples.h            JSONL files to a dataset of ids with question and answer spans
 *   models/decoder/model.h           a Hugging Face model directory on a device, and its export
 *   models/decoder/initialise.h      random weights for a config
 *   models/decoder/pass.h            passes of a model over flat streams of tokens
 *   models/decoder/decoding.h        many prompts decoded together, references scored on the way
 *   models/prior/prior.h           the frozen base router's mean probabilities, and their bias
 *   models/trace/trace.h           which experts a model chose for each token
 *   models/trace/trace_import.h    the same from files of other tools
 *   models/retention/retention.h       how much of a base model's routing was kept
 *   models/retention/retention_use.h   how a model uses its experts, how far domains lie apart
 *   models/retention/probe.h           all of this over domains, with communities, as a report
 *   models/retention/audit.h           what a base router has to measure and to hold, as verdicts
 *   models/retention/communities.h     communities of experts that are chosen together, and their file
 *   models/retention/partition.h       how alike two partitions are: NMI, AMI, ARI
 *   models/retention/community_report.h  communities of whole traces, with null graphs and noise floors
 *   models/retention/selection.h     likelihoods of answers under each other's experts
 *   models/evaluation/steer.h        evaluation while another model decides about experts
 *   models/evaluation/evaluate.h     a model's answers to suites: kedge_evaluate()
 *   models/training/config.h         every key of a run, from YAML and key=value
 *   models/training/trainer.h        a whole run: kedge_train()
 *
 * Functions return a kedge_status; kedge_message() has the line that explains a failure. Nothing here prints
 * or exits. A device, a model and what hangs on it belong to one thread at a time.
 */
#ifndef KEDGE_MODELS_H
#define KEDGE_MODELS_H

#include "core/kedge.h"

#ifdef __cplusplus
extern "C" {
#endif

#include "models/decoder/decoding.h"
#include "models/decoder/initialise.h"
#include "models/decoder/model.h"
#include "models/decoder/pass.h"
#include "models/evaluation/evaluate.h"
#include "models/prior/prior.h"
#include "models/retention/audit.h"
#include "models/retention/communities.h"
#include "models/retention/community_report.h"
#include "models/retention/partition.h"
#include "models/retention/probe.h"
#include "models/retention/retention.h"
#include "models/retention/retention_use.h"
#include "models/text/samples.h"
#include "models/text/tokenizer.h"
#include "models/trace/trace.h"
#include "models/trace/trace_import.h"
#include "models/training/config.h"
#include "models/training/trainer.h"

#ifdef __cplusplus
}
#endif

#endif
