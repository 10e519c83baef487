// turnmark: tells where a turn begins and ends. `turnmark remove opencode` takes this file away.
import { spawn } from "node:child_process"

const HOOK = "turnmark-hook"
const LONGEST = 12000

function tell(event, data) {
  return new Promise((resolve) => {
    let said = ""
    const done = () => resolve(said)
    try {
      const child = spawn(HOOK, ["opencode", event], { stdio: ["pipe", "pipe", "ignore"] })
      const timer = setTimeout(done, LONGEST)
      timer.unref?.()
      child.on("error", done)
      child.stdin.on("error", done)
      child.stdout.on("data", (part) => (said += part))
      child.on("close", () => (clearTimeout(timer), done()))
      child.stdin.end(JSON.stringify(data))
    } catch {
      done()
    }
  })
}

export const Turnmark = async ({ directory }) => {
  const turns = new Map()
  const children = new Map()
  const failed = new Map()
  const of = (sessionID, more) => ({
    sessionID,
    directory,
    parentID: children.get(sessionID),
    ...more,
  })
  return {
    "chat.message": async (input, output) => {
      const texts = output.parts.filter((part) => part.type === "text" && !part.synthetic)
      const messageID = output.message?.id ?? input.messageID
      const sessionID = input.sessionID
      turns.set(sessionID, messageID)
      failed.delete(sessionID)
      const prompt = texts.map((part) => part.text).join("\n")
      const said = await tell("chat.message", of(sessionID, { messageID, prompt }))
      if (said && texts.length) texts[texts.length - 1].text += `\n\n${said}`
    },
    "tool.execute.before": async (input, output) => {
      void tell("tool.execute.before", of(input.sessionID, { tool: input.tool, args: output.args }))
    },
    event: async ({ event }) => {
      const { sessionID, info, error } = event.properties ?? {}
      if (event.type === "session.created") {
        if (info?.parentID) children.set(info.id, info.parentID)
        await tell(event.type, of(info?.id, { directory: info?.directory ?? directory }))
      } else if (event.type === "session.error" && sessionID) {
        failed.set(sessionID, error?.name === "MessageAbortedError" ? "interrupted" : "error")
      } else if (event.type === "session.idle") {
        const messageID = turns.get(sessionID)
        await tell(event.type, of(sessionID, { messageID, status: failed.get(sessionID) ?? "ok" }))
      } else if (event.type === "session.deleted") {
        await tell(event.type, of(info?.id ?? sessionID))
      }
    },
  }
}
