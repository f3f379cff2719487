(()=>{
const body=document.querySelector("tbody"),heads=[...document.querySelectorAll("th")];
const value=(row,column)=>{const cell=row.cells[column],v=cell.dataset.v;return v===undefined?cell.textContent:+v};
const order=(a,b)=>a<b?-1:a>b?1:0;
const kind=row=>row.classList.contains("d")?0:1;
heads.forEach((head,column)=>{
const link=head.querySelector("a");
if(link)link.addEventListener("click",event=>{
event.preventDefault();
const up=head.getAttribute("aria-sort")!=="ascending";
heads.forEach(other=>other.removeAttribute("aria-sort"));
head.setAttribute("aria-sort",up?"ascending":"descending");
const rows=[...body.rows].filter(row=>!row.classList.contains("up"));
const byName=(a,b)=>kind(a)-kind(b)||order(value(a,0),value(b,0));
const first=column===0||column===3?(a,b)=>kind(a)-kind(b):()=>0;
rows.sort((a,b)=>first(a,b)||order(value(a,column),value(b,column))||byName(a,b));
if(!up)rows.reverse();
for(const row of rows)body.appendChild(row);
})})
})()
